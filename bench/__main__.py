"""The command: run benchmarks, print the table.

The exit status is 0 also when a target was missed: whether that is noise, a slow machine or our fault is for people to
judge. It is 1 when a benchmark failed to measure.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import time
import traceback
from pathlib import Path

from bench import (
    against,
    contended,
    held,
    latches,
    pairs,
    permits,
    readers,
    replicas,
    report,
    scripts,
    sizes,
    startup,
    tasks,
    threads,
)
from bench.measure import Figure, say
from redsync.testing.servers import pinned_server

_BENCHES = {
    "pairs": pairs.run,
    "down": pairs.run_down,
    "hung": pairs.run_hung,
    "threads": threads.run,
    "tasks": tasks.run,
    "contended": contended.run,
    "permits": permits.run,
    "held": held.run,
    "readers": readers.run,
    "fenced": pairs.run_fenced,
    "latch": latches.run,
    "replicas": replicas.run,
    "scripts": scripts.run,
    "sizes": sizes.run,
    "startup": startup.run,
}


def main() -> int:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(
        prog="bench", description="Measure redsync beside bare sockets, on five servers of this machine."
    )
    parser.add_argument("names", nargs="*", metavar="bench", help=f"of {', '.join(_BENCHES)}; default: all")
    parser.add_argument("--quick", action="store_true", help="two minutes instead of six, and less certain")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    parser.add_argument("--write", action="store_true", help="put the table into docs/benchmarks.md")
    parser.add_argument(
        "--compare", metavar="REF", help="run an older checkout in the same rounds, and show the change"
    )
    parser.add_argument("--rounds", type=int, default=3, help="how often each side runs with --compare (default 3)")
    options = parser.parse_args()
    if unknown := set(options.names) - set(_BENCHES):
        parser.error(f"no such bench: {', '.join(sorted(unknown))}; there are {', '.join(_BENCHES)}")
    names = [name for name in _BENCHES if name in options.names or not options.names]
    if options.write and (options.quick or len(names) < len(_BENCHES)):
        parser.error("--write publishes: run all benches, and not --quick")

    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    if options.compare is not None and (options.write or options.json):
        parser.error("--compare prints a table of its own: without --write and --json")

    # The same server wherever the same packages are: what PATH has is faster or slower.
    if server := pinned_server():
        os.environ["REDSYNC_SERVER"] = str(server)
    machine = report.describe_machine()
    if options.compare is not None:
        return _compare(parser, options, machine)
    # Nodes fall ill on purpose here.
    logging.getLogger("redsync").setLevel(logging.ERROR)
    figures: list[Figure] = []
    failed = []
    for name in names:
        say(f"{name} ...")
        begin = time.monotonic()
        try:
            figures += _BENCHES[name](quick=options.quick)
        except Exception:
            # The other figures are still worth having.
            traceback.print_exc()
            failed.append(name)
        say(f"{name}: {time.monotonic() - begin:.0f} s")
    _head(machine)
    print(report.as_text(figures))
    if options.json is not None:
        report.write_json(options.json, figures, machine)
    if failed:
        say(f"failed to measure: {', '.join(failed)}")
        return 1
    if options.write:
        report.write_document(figures, machine)
        say(f"wrote the table into docs/{report.DOCUMENT.name}")
    return 0


def _compare(parser: argparse.ArgumentParser, options: argparse.Namespace, machine: dict[str, str]) -> int:
    try:
        commit = against.resolve(options.compare)
    except ValueError as error:
        parser.error(str(error))
    # By default it would end this process at once, and leave the other checkout behind.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    table, failed = against.compare(commit, options.names or against.DEFAULT, options.rounds)
    _head(machine)
    print(table)
    if failed:
        say(f"failed to measure: {', '.join(failed)}")
    return 1 if failed else 0


def _head(machine: dict[str, str]) -> None:
    print(", ".join(f"{key}: {value}" for key, value in machine.items()))
    print()


if __name__ == "__main__":
    sys.exit(main())
