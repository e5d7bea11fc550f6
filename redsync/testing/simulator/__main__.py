"""`python -m redsync.testing.simulator`: replay one seed with its trace, or run many."""

from __future__ import annotations

import argparse
import sys

from redsync.testing.simulator.campaign import Campaign
from redsync.testing.simulator.runs import simulate
from redsync.testing.simulator.simulation import SimulationError
from redsync.testing.simulator.workload import SIMULATED


def main(arguments: list[str] | None = None) -> int:
    """Run as the command line says; return the exit status: 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m redsync.testing.simulator", description=__doc__)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--seed", type=int, help="make this run and print its trace")
    which.add_argument("--seeds", type=int, help="make that many runs")
    parser.add_argument("--first", type=int, default=0, help="the first of many seeds (default: 0)")
    parser.add_argument("--jobs", type=int, help="how many processes share them (default: one per core)")
    parser.add_argument("--kind", choices=SIMULATED, default="lock", help="what is contended for (default: lock)")
    parser.add_argument("--long", action="store_true", help="make long runs only, with faults that outlast connections")
    parser.add_argument("--nodes", type=int, help="how many nodes there are (default: the seed decides)")
    parser.add_argument(
        "--replicas", type=int, help="let Sentinels stand for each node, with so many replicas that acknowledge votes"
    )
    parser.add_argument(
        "--cluster", action="store_true", help="let a cluster lend the nodes; each of its masters has --replicas (1)"
    )
    parser.add_argument(
        "--unlisted", type=int, default=0, help="let every other machine leave so many nodes off its list (default: 0)"
    )
    options = parser.parse_args(arguments)
    if options.cluster and options.unlisted:
        parser.error("--cluster and --unlisted exclude each other: a cluster lends all nodes or none")
    how = {name: getattr(options, name) for name in ("long", "nodes", "replicas", "cluster", "unlisted")}
    if options.seeds is not None:
        seeds = range(options.first, options.first + options.seeds)
        return not Campaign(seeds, options.jobs, options.kind, **how).run()
    try:
        sys.stdout.write(simulate(options.seed, kind=options.kind, traced=True, **how).trace)
    except SimulationError as error:
        sys.stdout.write(f"{error.trace}\n{chr(10).join(error.complaints)}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
