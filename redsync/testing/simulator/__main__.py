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
    how = {name: getattr(options, name) for name in ("long", "nodes", "replicas", "cluster", "unlisted", "sets")}
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
