"""`python -m tests.simulation`: replay one seed with its trace, or run many on all cores.

`make simulate SEEDS=100000 KIND=fair` does the latter.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import sys
import time
import traceback
from functools import partial
from typing import Any

from redsync.testing.simulator.simulation import SimulationError
from tests.simulation.runs import Outcome, how_to_replay, simulate
from tests.simulation.workload import SIMULATED

_CHUNK = 25


def main(arguments: list[str] | None = None) -> int:
    """Run as the command line says; return the exit status: 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--seed", type=int, help="run this seed and print its trace")
    which.add_argument("--seeds", type=int, help="run that many seeds")
    parser.add_argument("--first", type=int, default=0, help="the first of the seeds (default: 0)")
    parser.add_argument("--jobs", type=int, help="the number of processes (default: one per core)")
    parser.add_argument("--kind", choices=SIMULATED, default="lock", help="the kind of synchronizer (default: lock)")
    parser.add_argument("--long", action="store_true", help="only long runs, with faults that outlast connections")
    parser.add_argument("--nodes", type=int, help="the number of nodes (default: the seed decides)")
    parser.add_argument(
        "--replicas", type=int, help="make each node a Sentinel group with that many replicas, which acknowledge votes"
    )
    parser.add_argument(
        "--cluster", action="store_true", help="make the nodes masters of a cluster, each with --replicas (default: 1)"
    )
    parser.add_argument(
        "--unlisted", type=int, default=0, help="leave that many nodes off the list of every other machine (default: 0)"
    )
    parser.add_argument(
        "--sets", type=int, help="the number of sets of links of each client (default: the seed decides)"
    )
    options = parser.parse_args(arguments)
    if options.cluster and options.unlisted:
        parser.error("--cluster and --unlisted exclude each other: clients list all nodes of a cluster or none")
    names = ("kind", "long", "nodes", "replicas", "cluster", "unlisted", "sets")
    how = {name: getattr(options, name) for name in names}
    if options.seeds is not None:
        return run_all(range(options.first, options.first + options.seeds), options.jobs, how)
    try:
        sys.stdout.write(simulate(options.seed, traced=True, **how).trace)
    except SimulationError as error:
        sys.stdout.write(f"{error.trace}\n{chr(10).join(error.complaints)}\n")
        return 1
    return 0


def run_all(seeds: range, jobs: int | None, how: dict[str, Any]) -> int:
    """Make many runs over several processes, show progress, print the outcome; return the exit status."""
    begun, jobs = time.monotonic(), jobs or os.cpu_count() or 1
    total, failed = Outcome(), list[int]()
    # A run leaves little but reference cycles, and collecting them costs less for many runs at once: see `run`.
    with multiprocessing.Pool(min(jobs, len(seeds)), initializer=gc.disable) as pool:
        runs = pool.imap_unordered(partial(run, how=how), seeds, chunksize=_CHUNK)
        for number, (seed, outcome) in enumerate(runs, start=1):
            if isinstance(outcome, Outcome):
                total.add(outcome)
            else:
                failed.append(seed)
                _print(f"seed {seed}: {outcome.rstrip()}\nreplay with: {how_to_replay(seed, **how)}\n")
            if number % (40 * _CHUNK) == 0:
                _print(f"{number:,} of {len(seeds):,} runs")
    took, hours = time.monotonic() - begun, total.seconds / 3600
    each = 1000 * took * jobs / max(len(seeds), 1)
    _print(f"{len(seeds):,} runs in {took:.1f} s ({each:.1f} ms each on one core), {hours:,.1f} hours of virtual time")
    _print(f"{total.acquisitions:,} acquisitions, {total.losses:,} reported losses")
    _print(f"faults: {', '.join(f'{count:,} {kind}' for kind, count in total.faults.most_common()) or 'none'}")
    if failed:
        _print(f"{len(failed)} runs FAILED, seeds {', '.join(map(str, sorted(failed)[:20]))}")
    else:
        _print("every promise was kept in every run")
    return int(bool(failed))


def run(seed: int, how: dict[str, Any]) -> tuple[int, Outcome | str]:
    """Make one run; return its seed, and its outcome, or the reason why it failed."""
    if seed % _CHUNK == 0:
        gc.collect()
    try:
        return seed, simulate(seed, **how)
    except SimulationError as error:
        return seed, "\n".join(error.complaints)
    except Exception:
        return seed, traceback.format_exc()


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
