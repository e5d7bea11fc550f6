"""`python -m tests.interop`: let redsync and other libraries fight for one name, and print who got how much.

`make interop SECONDS=10` does it for all libraries whose tools are here; `make interop LIBRARIES="pottery rslock"` for
a few. A fight takes that many seconds and up to 10 more: programs start, and a holder is killed on each side. All
libraries fight at the same time, each as soon as what it needs is downloaded and compiled.
"""

import argparse
import asyncio
import subprocess
import sys

from tests.interop.fights import meet
from tests.interop.programs import LIBRARIES, told

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


async def fight_all(libraries, seconds):
    """Build the libraries and let them fight, each as soon as it can; return the results, and the complaints."""
    results, complaints = [], []
    sources = {library.source for library in libraries if library.source}  # two libraries may share one
    builds = {source: asyncio.create_task(asyncio.to_thread(source.prepare)) for source in sources}

    async def play(library):
        try:
            reason = library.source and await builds[library.source]
        except subprocess.CalledProcessError as error:
            complaints.append(f"{library.name} could not be built: {told(error)}")
            return
        if reason:
            print(f"{library.name} is skipped: {reason}", flush=True)
            return
        for n in (1, 3):
            result = await meet(library, n, seconds)
            print(row(result), flush=True)
            results.append(result)
            complaints.extend(result.complaints())

    async with asyncio.TaskGroup() as group:
        for library in libraries:
            group.create_task(play(library))
    return results, complaints


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
    chosen = [library for library in LIBRARIES if not options.libraries or library.slug in options.libraries]
    for library in LIBRARIES:
        if library not in chosen:
            print(f"{library.name} is left out: it was not asked for.")
    print(COLUMNS.format(*HEAD), flush=True)
    results, complaints = asyncio.run(fight_all(chosen, options.seconds))
    good = "The sides took turns, neither starved, and redsync left nothing behind."
    print("\n".join(complaints) or (good if results else "There was no library to fight with."))
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
