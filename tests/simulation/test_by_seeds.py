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
from tests.simulation.__main__ import main, run_chunk
from tests.simulation.runs import simulate
from tests.simulation.scenario import ScenarioRunner
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
    for seed in range(2):
        simulate(seed, kind=kind)  # its error says how to replay it


@pytest.mark.sweep
@pytest.mark.parametrize("kind", SIMULATED)
def test_promises_are_kept_with_other_seeds(kind):
    """In each shape of a run: those of seeds below 1000, and the many of later ones."""
    for seed in (*drawn(1, below=1_000), *drawn(5)):
        simulate(seed, kind=kind)


FOUND = [
    ("lock", 1013974, "a waiter whose clock was set back and runs slow"),
    ("lock", 1044192, "a clock that had caught up unseen, mistaken for one that was never wrong"),
    ("lock", 1000950, "a renewal that was made before its hold ended in the same turn, and sent after it"),
    ("fair", 2001725, "four nodes that drew different tickets: two named one head, and two another"),
    ("fair", 2018814, "a ticket equal to one that its owner had left: it overtook later waiters"),
    ("fair", 2098523, "a client with a slow clock that is slow to abandon a silent connection"),
    ("latch", 1004446, "a command with an old state that arrives after nodes have forgotten the latch"),
    ("latch", 1001699, "a node that forgot, with its clock behind issued tokens (see docs/guarantees.md)"),
    ("limiter", 1018, "a place in the queue that outlasted its waiter on a node that was hung or cut off"),
    ("limiter", 2917, "time until room, where another client had requested more allowance"),
    ("limiter", 2060, "expired keys that no command had touched, back on a node whose clock was set back"),
    ("limiter", 5000124, "time until room, behind the first"),
    ("limiter", 20003682, "time until room: a node that had forgotten was believed"),
    ("limiter", 2085, "a message about a success that came too late, pending for a node that did not get the rollback"),
    ("limiter", 30001088, "time until room: each slot free on a quorum, but not all of them on one"),
    ("semaphore", 5001575, "a permit with a short lease that ended before the client abandoned a dark node"),
    *swept(
        ("semaphore", 3222, "a place in the queue that a node executed late, or had only from a rollback"),
        ("limiter", 10094, "another such place in the queue"),
        ("limiter", 2355, "keys that are back, and others that are not"),
        ("limiter", 5001565, "time until room, behind a waiter that left"),
        ("limiter", 5002175, "time until room: the client did not wait for a node"),
        ("limiter", 1146, "a waiter whose place is kept longer, and that may sleep longer"),
    ),
]


@pytest.mark.parametrize(("kind", "seed", "cause"), FOUND)
def test_run_that_once_found_a_mistake_keeps_every_promise(kind, seed, cause):
    simulate(seed, kind=kind)


def test_promises_are_kept_with_several_sets_of_links():
    """So are those of a half of the runs with other seeds."""
    for seed in range(3):
        simulate(seed, sets=3)


def test_waiter_that_leaves_over_another_set_has_no_place_on_a_node_that_executes_its_ask_late():
    simulate(9, kind="fair", sets=3)


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
    for seed in range(2000, 2004):
        assert simulate(seed, kind=kind, nodes=nodes, unlisted=1).acquisitions


def test_semaphore_admits_no_more_than_it_has_when_each_client_reaches_another_majority():
    """A counter on each node would admit three."""

    async def take(client):
        if permit := await client.get_semaphore("x", 2).acquire(False):
            await asyncio.sleep(1.0)
        return bool(permit)

    with Trial(seed=1, lease=2.0, restart_guard=0.0) as sim:
        for node, name in enumerate("abc"):
            machine = sim.machine(name)
            sim.partition(machine, node)
            machine.start(take(machine.client()))
        sim.run()
        assert sum(task.result() for machine in sim.machines for task in machine.tasks) == 2


@pytest.mark.sweep
@pytest.mark.parametrize("kind", ["lock", "limiter"])
def test_long_run_keeps_every_promise(kind):
    trace = simulate(1000, kind=kind, traced=True, long=True).trace
    assert re.search(r"no answer for 1\d s", trace), "a client abandons a connection in it"


@pytest.mark.sweep
def test_long_runs_have_commands_that_arrive_over_abandoned_connections():
    traces = (simulate(seed, traced=True, long=True).trace for seed in range(1000, 1010))
    assert any(re.search(r"\(a stray\): lock_(release|abandon)", trace) for trace in traces)


@pytest.mark.sweep
def test_workers_use_both_read_write_locks_in_all_ways():
    ways = ["acquire", "enter", "nest", "leave", "downgrade", "read inside", "upgrade"]
    said = [*(f"how={way} " for way in ways), " refused ", " found ", " extended ", " cancelled ", " leaves "]
    for seed in range(1000, 1020):
        trace = simulate(seed, kind="read-write", traced=True).trace
        said = [words for words in said if words not in trace]
        if not said:
            break
    assert said == []


# Nodes that are Sentinel groups or masters of a cluster, with failovers and moving slots.

GROUPS, CLUSTER = {}, {"cluster": True}


@pytest.mark.parametrize(
    ("world", "kind", "nodes", "replicas", "count"),
    [
        (GROUPS, "lock", 1, 2, 2),
        (GROUPS, "semaphore", 1, 1, 1),
        (CLUSTER, "lock", 3, 1, 2),
        (CLUSTER, "read-write", 1, 2, 1),
    ],
    ids=str,
)
def test_promises_are_kept_by_groups_and_clusters(world, kind, nodes, replicas, count):
    for seed in range(count):
        simulate(seed, kind=kind, nodes=nodes, replicas=replicas, **world)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("world", "nodes", "replicas"),
    [(GROUPS, 1, 2), (GROUPS, 1, 3), (GROUPS, 3, 2), (CLUSTER, 1, 2), (CLUSTER, 3, 1), (CLUSTER, 5, 1)],
    ids=str,
)
def test_promises_are_kept_by_groups_and_clusters_with_other_seeds(world, nodes, replicas):
    kinds = ["lock", "semaphore", "fenced", "read-write", "latch", "limiter"]
    for seed in drawn(4):
        simulate(seed, kind=kinds[seed % 6], nodes=nodes, replicas=replicas, **world)


def test_record_must_not_survive_in_the_server_between():
    """Found by seed 40014 of read-write locks, when decisions came faster than the Sentinels spread them.

    1a becomes a replica of 1b, which no client has used: it takes over 1b's data, which contains 1a's own record. Then
    it is promoted again. A client that knows neither decision takes it for the server that it was.
    """
    with Trial(seed=1, nodes=1, replicas=2, lease=2.0) as sim:
        stage = ScenarioRunner(sim, ["a", "b"], "lock")
        first, second = stage.actors.values()
        (group,) = sim.groups
        a, b, _ = group.servers
        group.slowness = 0.0
        second.machine.pause()
        first.ask(first.acquire, "y")
        sim.run(until=0.5)
        group.isolate([b])
        sim.run(until=0.6)
        first.ask(first.acquire, "x")
        sim.run(until=1.0)
        stage.expect_holds("a", "x")
        first.machine.pause()
        second.machine.resume()
        for sentinel in group.sentinels:
            group.deafen(sentinel)
        group.apart = set()
        group.fail_over(b)
        sim.run(until=1.5)
        group.fail_over(a)
        second.ask(second.acquire, "x", timeout=0.5)
        sim.run(until=2.2)
        stage.expect_said(second, "no quorum for x")


# Repeating a run.


def test_same_seed_gives_same_trace_under_another_hash_seed():
    program = "import sys; from tests.simulation.runs import simulate\n"
    program += "sys.stdout.write(simulate(1003, traced=True).trace)"
    env = {**os.environ, "PYTHONHASHSEED": "4242"}
    trace = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, check=True).stdout
    assert trace == simulate(1003, traced=True).trace.encode()
    assert trace != simulate(1004, traced=True).trace.encode()


@pytest.mark.parametrize(
    ("options", "happens"),
    [
        ({"kind": "semaphore"}, []),
        ({"nodes": 3, "cluster": True}, ["becomes the master", "begins to move from"]),
        *swept(
            ({"kind": "latch"}, []),
            ({"nodes": 1, "replicas": 2}, ["becomes the master"]),
            ({"long": True}, []),
            *[({"kind": kind}, []) for kind in ("fair", "read-write")],
        ),
    ],
    ids=str,
)
def test_same_seed_gives_same_trace(options, happens):
    first, second = (simulate(1003, traced=True, **options).trace for _ in range(2))
    assert first == second
    assert all(words in first for words in happens)


@pytest.mark.parametrize("option", ["", *swept(" --cluster")])
def test_error_of_a_run_says_how_to_replay_it(monkeypatch, option):
    monkeypatch.setattr("redsync._drivers.discovery.needed_of", lambda replicas: 0)
    with pytest.raises(SimulationError, match=f"--seed 1001{option} --nodes 1 --replicas 2"):
        simulate(1001, nodes=1, replicas=2, cluster=bool(option))


def test_command_prints_trace_of_one_seed_or_makes_many_runs_over_several_processes(capsys):
    assert main(["--seed", "1003", "--kind", "fair"]) == 0
    assert capsys.readouterr().out == simulate(1003, kind="fair", traced=True).trace
    assert main(["--seeds", "2", "--first", "1003", "--jobs", "2", "--kind", "fenced"]) == 0
    assert "every promise was kept in every run" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["--seed", "1", "--cluster", "--unlisted", "1"])
    assert "exclude each other" in capsys.readouterr().err


def test_campaign_names_failing_seeds(monkeypatch):
    def fail(seed, **how):
        raise RuntimeError("broken simulator") if seed == 3 else LookupError

    monkeypatch.setattr("tests.simulation.__main__.simulate", fail)
    _, failures = run_chunk(range(3, 4), {})
    assert [(seed, "broken simulator" in what) for seed, what in failures] == [(3, True)]
