"""The checker of delivery: it finds commands that nodes are owed and do not get."""

import pytest

from redsync._drivers.aio_link_sets import AioLinkSet
from redsync._drivers.pending_releases import PendingReleases, _OfNode
from redsync.testing.simulator import Simulation, SimulationError
from redsync.testing.simulator.checks import Delivery
from tests.support.hunting import hunt

LOST = "the client no longer keeps it"


def test_checker_finds_owed_release_that_is_lost_with_its_connection(monkeypatch):
    discard = AioLinkSet.discard

    def forget_pending(links, link, reason, **options):
        for request in link.pending:
            links.fail(request, link.node, reason)
        link.pending.clear()
        discard(links, link, reason, **options)

    monkeypatch.setattr(AioLinkSet, "discard", forget_pending)
    assert LOST in hunt(Delivery, range(10))


def test_checker_finds_owed_release_that_an_absent_node_is_never_owed(monkeypatch):
    monkeypatch.setattr(AioLinkSet, "miss", lambda links, node, request, reason, now: links.fail(request, node, reason))
    assert LOST in hunt(Delivery, range(10))


def test_checker_finds_commands_that_the_next_connection_does_not_get(monkeypatch):
    monkeypatch.setattr(_OfNode, "take", lambda ours, now: ours.requests.clear() or [])
    assert LOST in hunt(Delivery, range(20))


def test_checker_finds_refused_release_that_is_not_kept(monkeypatch):
    monkeypatch.setattr(PendingReleases, "refuse", lambda *_, **__: None)
    assert LOST in hunt(Delivery, range(4, 20))


# By hand.


def come_back(*, seconds: float, forget: bool = False):
    """Let a node miss a release, and come back for that many seconds."""
    with Simulation(seed=1, checkers=[Delivery], lease=60.0, restart_guard=0.0) as sim:
        machine = sim.machine("a")
        client = machine.client()

        async def visit():
            lock = client.get_lock("x")
            await lock.acquire()
            sim.nodes[0].crash()
            await lock.release()

        machine.start(visit())
        sim.run()
        sim.run(until=sim.now + 5.0)
        sim.nodes[0].restart(forget=forget)
        sim.run(until=sim.now + seconds)
    return sim


def test_checker_finds_release_that_is_kept_and_never_sent(monkeypatch):
    assert "node-1 executes for a: lock_release" in come_back(seconds=20.0).trace.text()
    monkeypatch.setattr(_OfNode, "take", lambda ours, now: [])
    come_back(seconds=14.0)
    with pytest.raises(SimulationError, match=r"delivery: node-1 has been owed #\d+ of a \(lock_release\) for 2\d"):
        come_back(seconds=20.0)


def test_node_that_forgot_is_owed_nothing(monkeypatch):
    monkeypatch.setattr(_OfNode, "take", lambda ours, now: [])
    come_back(seconds=20.0, forget=True)


def test_checker_finds_retries_that_are_never_due(monkeypatch):
    """A node refuses a release, and gets no retry after it recovers."""
    monkeypatch.setattr(AioLinkSet, "deliver", lambda links, node, now: None)
    with Simulation(seed=1, checkers=[Delivery], lease=60.0, restart_guard=0.0) as sim:
        machine = sim.machine("a")
        client = machine.client()

        async def visit():
            lock = client.get_lock("x")
            await lock.acquire()
            sim.nodes[0].refuse("MISCONF")
            await lock.release()

        machine.start(visit())
        sim.run()
        sim.run(until=sim.now + 20.0)
        sim.nodes[0].recover()
        sim.run(until=sim.now + 14.0)
        sim.check()
        sim.timeline.now += 2.0
        with pytest.raises(SimulationError, match="delivery: node-1 has been owed"):
            sim.check()
        machine.crash()


def test_connection_with_occasional_delayed_replies_may_deliver_late():
    """Packets arrive one by one, so the connection is not silent for ten seconds."""
    with Simulation(seed=1, checkers=[Delivery], lease=600.0, restart_guard=0.0) as sim:
        machine, node = sim.machine("a"), sim.nodes[0]
        client = machine.client()

        async def visit():
            locks = [client.get_lock(str(number)) for number in range(20)]
            for lock in locks:
                await lock.acquire()
            path = sim.network.route(machine, node).there
            for number, lock in enumerate(locks):
                path.delay = 3.0 * number
                await lock.release()
            path.mend()

        machine.start(visit())
        sim.run()
        released = f"{node.name} executes for a: lock_release"
        sim.run(until=sim.now + 20.0)
        assert 0 < sim.trace.text().count(released) < 20
        sim.run(until=sim.now + 40.0)
        assert sim.trace.text().count(released) >= 20
        machine.crash()
