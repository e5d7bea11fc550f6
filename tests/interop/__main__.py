"""`python -m tests.interop`: let redsync and other libraries fight for one name, and print who got how much.

`make interop SECONDS=10` does it for all libraries whose tools are here; `make interop LIBRARIES="pottery rslock"` for
a few. A fight takes that many seconds and up to 10 more: programs start, and a holder is killed on each side.
"""

import argparse
import asyncio
import subprocess
import sys
import time

from tests.interop.fights import meet
from tests.interop.programs import LIBRARIES, LOG

COLUMNS = "{:<16}{:>6}{:>8}{:>8}{:>14}{:>10}{:>9}{:>6}{:>8}{:>13}{:>11}"
HEAD = ("library", "nodes", "ours", "theirs", "shares", "timeouts", "overlaps", "lost", "left", "they died", "we died")
"""The last two: the seconds from the kill of a process of theirs, or ours, until the other side had its lock."""


def row(result):
    """Return a line of the table."""
    ledger, left = result.ledger, result.left
    return COLUMNS.format(
        result.library.name,
        result.nodes,
        ledger.wins["ours"],
        ledger.wins["theirs"],
        f"{result.share('ours'):.0%} : {result.share('theirs'):.0%}",
        f"{ledger.timeouts['ours']} : {ledger.timeouts['theirs']}",
        ledger.overlaps,
        ledger.lost_updates,
        f"{len(left['ours'])} : {len(left['theirs'])}",
        f"{result.theirs_freed:.2f} s",
        f"{result.ours_freed:.2f} s",
    )


def choose(names):
    """Yield the libraries that can fight, built; print a sentence for each other."""
    for library in LIBRARIES:
        if names and library.slug not in names:
            print(f"{library.name} is left out: it was not asked for.")
        elif missing := library.missing():
            print(f"{library.name} is skipped: this machine has no {' and no '.join(missing)}.")
        else:
            began = time.monotonic()
            try:
                library.prepare()
            except subprocess.CalledProcessError as error:
                raise SystemExit(f"{library.name} could not be built: {error} {LOG} says why.") from None
            if library.folder:
                print(f"{library.name} is built, in {time.monotonic() - began:.0f} s.", flush=True)
            yield library


def main(arguments=None):
    """Run the fights; return 1 if one showed what should not be."""
    parser = argparse.ArgumentParser(prog="python -m tests.interop", description=__doc__)
    parser.add_argument("--seconds", type=float, default=10, help="how long each fight lasts (default: 10)")
    parser.add_argument("libraries", nargs="*", metavar="LIBRARY", help="by default all of those below")
    parser.epilog = ", ".join(library.slug for library in LIBRARIES)
    options = parser.parse_args(arguments)
    if not 0 < options.seconds <= 600:
        parser.error("a fight lasts up to 600 s")
    if unknown := set(options.libraries) - {library.slug for library in LIBRARIES}:
        parser.error(f"no such library: {', '.join(sorted(unknown))}")
    libraries = list(choose(options.libraries))
    if not libraries:
        print("There is no library to fight with.")
        return 0
    print(COLUMNS.format(*HEAD), flush=True)
    complaints = []
    for library in libraries:
        for n in (1, 3):
            result = asyncio.run(meet(library, n, options.seconds))
            print(row(result), flush=True)
            complaints += result.complaints()
    print("\n".join(complaints) or "The sides took turns, neither starved, and redsync left nothing behind.")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
