"""The checker of liveness: it finds waiters that are not served, woken or answered."""

import asyncio

import pytest

from redsync._protocols import claims, places
from redsync._protocols.attempts import Attempt
from redsync.testing.simulator import Simulation, SimulationError
from redsync.testing.simulator.checks import Liveness
from redsync.testing.simulator.checks.calm import Calm
from redsync.testing.simulator.happenings import Did
from redsync.testing.simulator.nodes import VirtualNode
from tests.support.hunting import KEYS, break_script, hunt


def test_checker_finds_waiter_that_relies_on_its_wake_up(monkeypatch):
    monkeypatch.setattr(claims, "time_left", lambda tally: 3600.0)
    monkeypatch.setattr(places, "usual_pause", lambda *_: 3600.0)
    broken = break_script("lock_release", ("wake(channel, mark, head)", "1"))
    assert "has not asked since" in hunt(Liveness, range(40), scripts=broken)


def test_checker_finds_timeouts_that_are_not_kept(monkeypatch):
    deadline = Attempt.deadline.fget
    monkeypatch.setattr(Attempt, "deadline", property(lambda attempt: deadline(attempt) + 3.0))
    assert "should have had an answer" in hunt(Liveness, range(40))


# By hand.


async def take(client):
    async with client.get_lock("x"):
        pass


def test_lock_that_is_free_in_spite_of_a_waiter_is_found_after_the_bound():
    with Simulation(seed=1, checkers=[Liveness], lease=2.0, restart_guard=2.0) as sim:
        a = sim.machine("a")
        for node in sim.nodes:
            node.store.execute(b"hset", KEYS.lock, b"unused", b"1")
        a.start(take(a.client()))
        # A lease, two guards no shorter than it, five seconds.
        with pytest.raises(SimulationError, match=r"liveness: 'redsync:x' has been free for 1[12]\.\d+ s"):
            sim.run()
        assert 11.0 < sim.now < 13.0
        a.crash()


def test_time_with_faults_does_not_count():
    with Simulation(seed=1, checkers=[Liveness], lease=2.0, restart_guard=2.0) as sim:
        a = sim.machine("a")
        sim.partition(a, 0, 1)
        a.start(take(a.client()))
        sim.run(until=60.0)
        sim.heal()
        sim.run()


IN_TROUBLE = [
    *(
        pytest.param(lambda node, code=code: node.refuse(code), id=code)
        for code in ("LOADING", "MOVED", "READONLY", "OOM")
    ),
    pytest.param(VirtualNode.ignore, id="ignores"),
]


def let_wait_in_trouble(sim, trouble):
    """Let a machine wait for a lock whose holder crashes, while two of three nodes are in trouble; return it."""
    a, b = sim.machine("a"), sim.machine("b")
    b.start(work(b.client()))
    sim.run(until=1.0)
    a.start(take(a.client()))
    sim.run(until=1.5)
    for node in sim.nodes[:2]:
        trouble(node)
        for connection in list(node._sessions):
            node.end(connection)
    b.crash()
    sim.run(until=60.0)
    return a


async def work(client):
    async with client.get_lock("x"):
        await asyncio.sleep(30.0)


@pytest.mark.parametrize("trouble", IN_TROUBLE)
def test_time_with_nodes_in_trouble_does_not_count(trouble):
    with Simulation(seed=1, checkers=[Liveness], lease=2.0) as sim:
        let_wait_in_trouble(sim, trouble)
        for node in sim.nodes:
            node.recover()
        sim.run()


@pytest.mark.parametrize("trouble", IN_TROUBLE)
def test_lock_that_is_free_after_trouble_of_nodes_is_found_after_the_bound(trouble):
    with Simulation(seed=1, checkers=[Liveness], lease=2.0) as sim:
        a = let_wait_in_trouble(sim, trouble)
        for node in sim.nodes:
            node.store.execute(b"hset", KEYS.lock, b"unused", b"1")
            node.recover()
        # A lease, two guards no shorter than it, ten seconds of silence, five seconds.
        with pytest.raises(SimulationError, match=r"liveness: 'redsync:x' has been free for 2[0-3]\.\d+ s"):
            sim.run()
        a.crash()


def test_time_until_a_clock_has_caught_up_does_not_count_even_unobserved():
    with Simulation(seed=1, checkers=()) as sim:
        calm, a = Calm(sim), sim.machine("a")
        calm.stir()
        a.jump(-3.0)
        sim.timeline.now = 2.9
        assert calm.lasted() == 0.0
        sim.timeline.now = 4.0
        assert calm.lasted() == pytest.approx(1.0)
    with Simulation(seed=1, checkers=()) as sim:
        calm, a = Calm(sim), sim.machine("a")
        calm.stir()
        a.jump(-3.0)
        sim.timeline.now = 4.0
        assert calm.lasted() == pytest.approx(1.0)


def test_answer_is_due_at_the_timeout():
    with Simulation(seed=1, checkers=()) as sim:
        checker, a = Liveness(sim), sim.machine("a")
        checker.see(Did(0.0, a, "a worker", "asks", {"timeout": 2.0}))
        sim.timeline.now = 2.4
        assert list(checker.finish()) == []
        sim.timeline.now = 2.6
        assert "a worker on a should have had an answer 0.6" in next(iter(checker.finish()))
        checker.see(Did(0.0, a, "a worker", "busy", {}))
        assert list(checker.finish()) == []


# Fair locks.


async def hold(client, seconds, served=None):
    async with client.get_fair_lock("x"):
        if served is not None:
            served.append(client.runner.sim.now)
        await asyncio.sleep(seconds)


def test_newcomer_that_gets_no_ticket_is_found(monkeypatch):
    monkeypatch.setattr(places.Ticket, "learn", lambda place, tally: False)
    with Simulation(seed=1, checkers=[Liveness], lease=2.0, restart_guard=2.0) as sim:
        a, b = sim.machine("a"), sim.machine("b")
        a.start(hold(a.client(), 60.0))
        sim.run(until=1.0)
        b.start(hold(b.client(), 0.0))
        # As for a place, which is kept for a lease, two guards no shorter than that, five seconds.
        with pytest.raises(SimulationError, match=r"liveness: b:1 has asked for 'redsync:x' since 1\.\d+, and has no"):
            sim.run()
        assert 12.0 < sim.now < 13.0
        a.crash()
        b.crash()


def test_dead_heads_hold_up_the_queue_no_longer_than_their_places():
    served = []
    with Simulation(seed=1, lease=2.0) as sim:
        a, *others = map(sim.machine, "abcdef")
        a.start(hold(a.client(), 2.0))
        for number, machine in enumerate(others, start=1):
            sim.run(until=number * 0.2)
            machine.start(hold(machine.client(), 0.0, served))
        sim.run(until=1.9)
        for machine in others[:-1]:
            machine.crash(dark=True)
        sim.run()
    # Not 3 s for each of them, but for all at once, and then the last one looks.
    (instant,) = served
    assert 1.9 + 0.5 < instant < 1.9 + 3.0 + 2.1
