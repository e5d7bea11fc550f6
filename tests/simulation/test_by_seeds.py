"""Runs by seed: every kind, with all faults, keeps every promise; `make simulate SEEDS=100000 KIND=fair` makes more.

The same seed gives the same trace, in any process, and an error says how to replay it.
"""

import asyncio
import os
import re
import subprocess
import sys

import pytest

from redsync.testing.simulator import SimulationError
from tests.simulation.__main__ import main, run
from tests.simulation.runs import simulate
from tests.simulation.trial import Trial
from tests.simulation.workload import SIMULATED
from tests.support.sweeps import new_seed, swept

pytestmark = pytest.mark.timeout(400)  # they do the same work on a busy machine


def drawn(count, *, below=1_000_000):
    """Return that many seeds, other ones in each run of the tests."""
    first = new_seed() % below
    return range(first, first + count)


@pytest.mark.parametrize("kind", SIMULATED)
def test_promises_are_kept(kind):
    for seed in (1, 1003):
        simulate(seed, kind=kind)  # its error says how to replay it


def test_all_kinds_of_faults_happen():
    lives = "crash", "restart", "restart empty", "restart older", "hang", "resume", "refuse", "recover", "flush"
    nodes = {f"node {kind}" for kind in (*lives, "drift", "jump", "scripts", "ignore", "kick")}
    machines = {f"machine {kind}" for kind in ("pause", "resume", "crash", "drift", "jump")}
    missing = {"partition", "delay", "loss", "heal", "tear", "room"} | nodes | machines
    for seed in range(1000, 1100):
        missing -= simulate(seed, checkers=()).faults.keys()
        if not missing:
            return
    assert missing == set()


@pytest.mark.sweep
@pytest.mark.parametrize("kind", SIMULATED)
def test_promises_are_kept_with_other_seeds(kind):
    """In each shape of a run: those of seeds below 1000, and the many of later ones."""
    for seed in (*drawn(1, below=1_000), *drawn(5)):
        simulate(seed, kind=kind)


def test_promises_are_kept_with_several_sets_of_links():
    """So are those of a half of the runs with other seeds."""
    for seed in range(3):
        simulate(seed, sets=3)


def test_waiter_whose_wake_ups_come_late_acquires_by_its_own_look():
    """Its rounds have other connections, so nodes answer at once."""

    async def hold(client, seconds):
        async with client.get_lock("x"):
            await asyncio.sleep(seconds)

    with Trial(seed=1, sets=3, lease=30.0, restart_guard=0.0) as sim:
        a, b = sim.machine("a"), sim.machine("b")
        a.start(hold(a.client(), 1.0))
        sim.run(until=0.5)
        sim.delay_pushes(b, seconds=1000.0)
        b.start(hold(b.client(), 0.0))
        sim.run(until=5.0)
        assert all(task.done() for task in b.tasks)
        sim.heal()


@pytest.mark.parametrize(
    ("nodes", "kind"),
    [
        (4, "lock"),
        (5, "semaphore"),
        *swept((5, "fair"), (4, "read-write"), (5, "limiter"), (4, "latch")),
    ],
)
def test_promises_are_kept_while_one_node_is_not_on_all_lists(kind, nodes):
    assert sum(simulate(seed, kind=kind, nodes=nodes, unlisted=1).acquisitions for seed in range(2000, 2004))


@pytest.mark.sweep
@pytest.mark.parametrize("kind", ["lock", "limiter"])
def test_long_run_keeps_every_promise(kind):
    trace = simulate(1000, kind=kind, traced=True, long=True).trace
    assert re.search(r"no answer for [\d.]+ s", trace), "a client abandons a connection in it"


# Nodes that are Sentinel groups or masters of a cluster, with failovers and moving slots.

WORLDS = [{"nodes": 1, "replicas": 2}, {"nodes": 3, "replicas": 1, "cluster": True}]
MORE_WORLDS = [
    {"nodes": 1, "replicas": 3},
    {"nodes": 3, "replicas": 2},
    {"nodes": 1, "replicas": 2, "cluster": True},
    {"nodes": 5, "replicas": 1, "cluster": True},
]


@pytest.mark.parametrize("world", WORLDS, ids=str)
@pytest.mark.parametrize("kind", ["lock", "semaphore"])
def test_promises_are_kept_by_groups_and_clusters(world, kind):
    for seed in range(2):
        simulate(seed, kind=kind, **world)


@pytest.mark.sweep
@pytest.mark.parametrize("world", [*WORLDS, *MORE_WORLDS], ids=str)
def test_promises_are_kept_by_groups_and_clusters_with_other_seeds(world):
    kinds = ["lock", "semaphore", "fenced", "read-write", "latch", "limiter"]
    for seed in drawn(4):
        simulate(seed, kind=kinds[seed % 6], **world)


# Repeating a run.


@pytest.mark.parametrize(
    ("options", "happens"),
    [
        ({"kind": "semaphore"}, []),
        ({"nodes": 3, "cluster": True}, ["becomes the master", "begins to move from"]),
        *swept(
            ({"kind": "latch"}, []),
            ({"nodes": 1, "replicas": 2}, ["becomes the master"]),
            ({"long": True}, []),
            *[({"kind": kind}, []) for kind in ("lock", "fair", "read-write")],
        ),
    ],
    ids=str,
)
def test_same_seed_gives_same_trace_in_another_process_under_another_hash_seed(options, happens):
    program = "import sys; from tests.simulation.runs import simulate\n"
    program += f"sys.stdout.write(simulate(1003, traced=True, **{options}).trace)"
    env = {**os.environ, "PYTHONHASHSEED": "4242"}
    other = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, check=True, text=True).stdout
    trace = simulate(1003, traced=True, **options).trace
    assert other == trace != simulate(1004, traced=True, **options).trace
    assert all(words in trace for words in happens)


@pytest.mark.parametrize("option", ["", *swept(" --cluster")])
def test_error_of_a_run_says_how_to_replay_it(monkeypatch, option):
    monkeypatch.setattr("redsync._drivers.discovery.needed_of", lambda replicas: 0)
    how = {"kind": "lock", "nodes": 1, "replicas": 2, "cluster": bool(option)}
    with pytest.raises(SimulationError, match=f"--seed 1001{option} --nodes 1 --replicas 2"):
        simulate(1001, **how)
    seed, why = run(1001, how)
    assert seed == 1001
    assert "is held by" in why, "a campaign names the seeds that failed, and why"


def test_command_prints_trace_of_one_seed_or_makes_many_runs_over_several_processes(capsys):
    assert main(["--seed", "1003", "--kind", "fair"]) == 0
    assert capsys.readouterr().out == simulate(1003, kind="fair", traced=True).trace
    assert main(["--seeds", "2", "--first", "1003", "--jobs", "2", "--kind", "fenced"]) == 0
    assert "every promise was kept in every run" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["--seed", "1", "--cluster", "--unlisted", "1"])
    assert "exclude each other" in capsys.readouterr().err
