"""Nodes of a cluster, with all faults, failovers, and moving slots: some runs by seed."""

import pytest

from redsync.testing.simulator import SimulationError
from redsync.testing.simulator.__main__ import main
from redsync.testing.simulator.runs import simulate
from tests.support.sweeps import swept

PER_TEST = 5
KINDS = ("lock", "fenced", "semaphore", "read-write")

FEW = [
    ("lock", 3, 1, range(2)),
    ("fenced", 3, 2, range(1)),
    ("semaphore", 3, 1, range(1)),
    ("read-write", 1, 2, range(1)),
    ("latch", 3, 1, range(1)),
    ("limiter", 5, 1, range(1)),
]
MORE = [
    (kind, nodes, replicas, range(first, first + PER_TEST))
    for kind in KINDS
    for nodes, replicas, count in ((1, 2, 20), (3, 1, 20), (5, 1, 5))
    for first in range(1000, 1000 + count, PER_TEST)
]


@pytest.mark.parametrize(("kind", "nodes", "replicas", "seeds"), FEW + swept(*MORE), ids=str)
def test_promises_are_kept_by_clusters_in_runs_by_seed(kind, nodes, replicas, seeds):
    for seed in seeds:
        simulate(seed, kind=kind, nodes=nodes, replicas=replicas, cluster=True)  # its error says how to replay it


def test_same_seed_gives_same_trace_of_clusters():
    first, second = (simulate(1003, nodes=3, cluster=True, traced=True).trace for _ in range(2))
    assert first == second
    assert "begins to move from" in first
    assert "becomes the master" in first


def test_run_of_clusters_says_how_to_replay_it(monkeypatch):
    monkeypatch.setattr("redsync._drivers.locators.needed_of", lambda replicas: 0)
    with pytest.raises(SimulationError, match="--seed 1001 --cluster --nodes 1 --replicas 2"):
        simulate(1001, nodes=1, replicas=2, cluster=True)


def test_clients_list_all_nodes_of_a_cluster(capsys):
    with pytest.raises(SystemExit):
        main(["--seed", "1", "--cluster", "--unlisted", "1"])
    assert "exclude each other" in capsys.readouterr().err
