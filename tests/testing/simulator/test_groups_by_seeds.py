"""Nodes that are Sentinel groups, with all faults and failovers: some runs by seed."""

import pytest

from redsync.testing.simulator import SimulationError
from redsync.testing.simulator.runs import simulate
from tests.support.sweeps import swept

PER_TEST = 5
KINDS = ("lock", "fenced", "semaphore", "read-write")

FEW = [
    ("lock", 1, 2, range(2)),
    ("fenced", 3, 2, range(1)),
    ("semaphore", 1, 1, range(1)),
    ("read-write", 1, 3, range(1)),
]
MORE = [
    (kind, nodes, 2, range(first, first + PER_TEST))
    for kind in KINDS
    for nodes, count in ((1, 40), (3, 10))
    for first in range(1000, 1000 + count, PER_TEST)
]


@pytest.mark.parametrize(("kind", "nodes", "replicas", "seeds"), FEW + swept(*MORE), ids=str)
def test_promises_are_kept_by_groups_in_runs_by_seed(kind, nodes, replicas, seeds):
    for seed in seeds:
        simulate(seed, kind=kind, nodes=nodes, replicas=replicas)  # its error says how to replay it


def test_same_seed_gives_same_trace_of_groups():
    first, second = (simulate(1003, nodes=1, replicas=2, traced=True).trace for _ in range(2))
    assert first == second
    assert "becomes the master" in first


def test_run_of_groups_says_how_to_replay_it(monkeypatch):
    monkeypatch.setattr("redsync._drivers.locators.needed_of", lambda replicas: 0)
    with pytest.raises(SimulationError, match="--seed 1001 --nodes 1 --replicas 2"):
        simulate(1001, nodes=1, replicas=2)
