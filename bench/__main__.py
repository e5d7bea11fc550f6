"""The command: runs benchmarks, and prints the table.

The exit status is 0 even if a target is missed: people must judge whether the reason is noise, a slow machine or our
code. It is 1 if a benchmark failed to measure.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from bench import (
    against,
    busy,
    contended,
    held,
    latches,
    metrics,
    pairs,
    peers,
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
    "peers": peers.run,
    "threads": threads.run,
    "tasks": tasks.run,
    "busy": busy.run,
    "contended": contended.run,
    "permits": permits.run,
    "held": held.run,
    "readers": readers.run,
    "fenced": pairs.run_fenced,
    "latch": latches.run,
    "metrics": metrics.run,
    "replicas": replicas.run,
    "scripts": scripts.run,
    "sizes": sizes.run,
    "startup": startup.run,
}


def main() -> int:
    """Run the benchmarks asked for."""
    parser = argparse.ArgumentParser(
        prog="bench", description="Measure redsync against bare sockets, on five servers on this machine."
    )
    parser.add_argument("names", nargs="*", metavar="bench", help=f"one of {', '.join(_BENCHES)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="take a few minutes instead of many, with less precision")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to FILE")
    parser.add_argument("--plots", type=Path, metavar="DIRECTORY", help="also draw the figures there, as SVG")
    parser.add_argument("--write", action="store_true", help="write table and plots into docs/")
    parser.add_argument("--compare", metavar="REF", help="also run an older commit in the same rounds, show the change")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each side with --compare (default: 3)")
    options = parser.parse_args()
    if unknown := set(options.names) - set(_BENCHES):
        parser.error(f"unknown benchmark: {', '.join(sorted(unknown))}; choose from {', '.join(_BENCHES)}")
    names = [name for name in _BENCHES if name in options.names or not options.names]
    if options.write and (options.quick or len(names) < len(_BENCHES)):
        parser.error("--write publishes the table: run all benchmarks, without --quick")

    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    if options.compare is not None and (options.write or options.json):
        parser.error("--compare prints its own table: give it without --write and --json")

    # The server from our packages is the same everywhere; the one on PATH may be faster or slower.
    if server := pinned_server():
        os.environ["REDSYNC_SERVER"] = str(server)
    machine = report.describe_machine()
    if options.compare is not None:
        return _compare(parser, options, machine)
    # Nodes fail on purpose here.
    logging.getLogger("redsync").setLevel(logging.ERROR)
    figures: list[Figure] = []
    failed = []
    for name in names:
        say(f"{name} ...")
        begin = time.monotonic()
        try:
            figures += _BENCHES[name](quick=options.quick)
        except Exception:
            # Keep the other figures.
            traceback.print_exc()
            failed.append(name)
        say(f"{name}: {time.monotonic() - begin:.0f} s")
    _publish(options, figures, machine, failed)
    return 1 if failed else 0


def _publish(
    options: argparse.Namespace, figures: list[Figure], machine: dict[str, str], failed: Sequence[str]
) -> None:
    """Print the table, and write the files asked for; write into the documentation only if nothing failed."""
    _head(machine)
    print(report.as_text(figures))
    if options.json is not None:
        options.json.write_text(report.as_json(figures, machine))
    if options.plots is not None:
        for file in report.draw(options.plots, figures, machine):
            say(f"drew {file}")
    if failed:
        say(f"failed to measure: {', '.join(failed)}")
    elif options.write:
        drawn = report.write_document(figures, machine)
        say(f"wrote docs/{report.DOCUMENT.name} and its figures: {', '.join(file.name for file in drawn)}")


def _compare(parser: argparse.ArgumentParser, options: argparse.Namespace, machine: dict[str, str]) -> int:
    try:
        commit = against.resolve(options.compare)
    except ValueError as error:
        parser.error(str(error))
    # By default SIGTERM would end this process at once, and leave the other checkout behind.
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
