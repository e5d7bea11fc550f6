"""Nodes that are Sentinel groups or masters of a cluster, with all faults, failovers and moving slots: runs by seed."""

import pytest

from redsync.testing.simulator import SimulationError
from redsync.testing.simulator.__main__ import main
from redsync.testing.simulator.runs import simulate
from tests.support.sweeps import swept

PER_TEST = 5
KINDS = ("lock", "fenced", "semaphore", "read-write")
GROUPS, CLUSTER = {}, {"cluster": True}

FEW = [
    (GROUPS, "lock", 1, 2, range(2)),
    (GROUPS, "fenced", 3, 2, range(1)),
    (GROUPS, "semaphore", 1, 1, range(1)),
    (GROUPS, "read-write", 1, 3, range(1)),
    (CLUSTER, "lock", 3, 1, range(2)),
    (CLUSTER, "fenced", 3, 2, range(1)),
    (CLUSTER, "semaphore", 3, 1, range(1)),
    (CLUSTER, "read-write", 1, 2, range(1)),
    (CLUSTER, "latch", 3, 1, range(1)),
    (CLUSTER, "limiter", 5, 1, range(1)),
]
SIZES = [(GROUPS, 1, 2, 40), (GROUPS, 3, 2, 10), (CLUSTER, 1, 2, 20), (CLUSTER, 3, 1, 20), (CLUSTER, 5, 1, 5)]
MORE = [
    (world, kind, nodes, replicas, range(first, first + PER_TEST))
    for kind in KINDS
    for world, nodes, replicas, count in SIZES
    for first in range(1000, 1000 + count, PER_TEST)
]


@pytest.mark.parametrize(("world", "kind", "nodes", "replicas", "seeds"), FEW + swept(*MORE), ids=str)
def test_promises_are_kept_by_groups_and_clusters_in_runs_by_seed(world, kind, nodes, replicas, seeds):
    for seed in seeds:
        simulate(seed, kind=kind, nodes=nodes, replicas=replicas, **world)  # its error says how to replay it


@pytest.mark.parametrize(
    ("options", "happens"),
    [
        ({"nodes": 1, "replicas": 2}, ["becomes the master"]),
        ({"nodes": 3, "cluster": True}, ["becomes the master", "begins to move from"]),
    ],
    ids=["groups", "cluster"],
)
def test_same_seed_gives_same_trace_of_groups_and_clusters(options, happens):
    first, second = (simulate(1003, traced=True, **options).trace for _ in range(2))
    assert first == second
    assert all(words in first for words in happens)


@pytest.mark.parametrize(("world", "option"), [(GROUPS, ""), (CLUSTER, " --cluster")], ids=["groups", "cluster"])
def test_run_of_groups_and_clusters_says_how_to_replay_it(monkeypatch, world, option):
    monkeypatch.setattr("redsync._drivers.locators.needed_of", lambda replicas: 0)
    with pytest.raises(SimulationError, match=f"--seed 1001{option} --nodes 1 --replicas 2"):
        simulate(1001, nodes=1, replicas=2, **world)


def test_clients_list_all_nodes_of_a_cluster(capsys):
    with pytest.raises(SystemExit):
        main(["--seed", "1", "--cluster", "--unlisted", "1"])
    assert "exclude each other" in capsys.readouterr().err
