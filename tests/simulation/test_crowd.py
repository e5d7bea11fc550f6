"""Many tasks of one client that wait: all are served, with few commands each, next to other clients and in an outage.

`tests/core/test_local_queues.py` has the exact rules of the queues in the client.
"""

import asyncio
import contextlib

import pytest

from redsync._core.local_queues import LIMIT
from redsync._core.scripts import Script
from redsync.testing.simulator.trace_events import Sent
from tests.simulation.stores import execute
from tests.simulation.trial import Trial
from tests.support.sweeps import swept

WAITERS = 200

PROBES = 101
"""Tries per second of all waiters in an outage, at most."""

SICK = "if redis.call('exists', 'sick') == 1 then return redis.error_reply('MISCONF errors writing to disk') end\n"


class Crowd:
    """A client with `WAITERS` tasks, which want the lock `x` or one lock each, and another client.

    Attributes:
        served: The tasks that acquired, in order, each as its client's name and number.
    """

    def __init__(self, *, lease=60.0, guard=0.0, each_its_own=False):
        sick = {"lock_acquire": SICK + Script.load("lock_acquire").source.decode()}
        self.sim = Trial(seed=3, nodes=3, lease=lease, restart_guard=guard, checkers=(), scripts=sick)
        self.a, self.b = self.sim.machine("a"), self.sim.machine("b")
        self.clients = {machine: machine.client() for machine in (self.a, self.b)}
        self.each_its_own = each_its_own
        self.served = []
        self.b.start(self.hold("y", 0.0))
        self.a.start(self.clients[self.a]._runner.connect())
        self.sim.run(until=1.0)

    async def work(self, machine, number):
        async with self.clients[machine].get_lock(f"x{number}" if self.each_its_own else "x"):
            self.served.append((machine.name, number))
            await asyncio.sleep(0.01)

    async def hold(self, name, seconds):
        async with self.clients[self.b].get_lock(name):
            await asyncio.sleep(seconds)

    def begin(self, machine=None, number=WAITERS):
        machine = machine or self.a
        return [machine.start(self.work(machine, i)) for i in range(number)]

    def asks(self, since=0.0):
        """Return the commands with which a has asked for a lock since that instant."""
        sent = (event for event in self.sim.trace.events if isinstance(event, Sent))
        return [e for e in sent if e.client == "a" and e.script.endswith("lock_acquire") and e.at >= since]

    def asked(self):
        """Return the owners on a that have asked for a lock."""
        return {ask.args[0].rpartition(b":")[0] for ask in self.asks()}

    # Troubles, for which most nodes do not serve a.

    def hang(self):
        for node in self.sim.nodes[:2]:
            node.hang()

    def crash(self):
        for node in self.sim.nodes:
            node.crash()

    def forget(self):
        for node in self.sim.nodes:
            node.crash()
            node.restart(forget=True)

    def sicken(self):
        for node in self.sim.nodes:
            execute(node.store, b"set", b"sick", b"1")

    def part(self):
        self.sim.partition(self.a, 0, 1)

    def recover(self):
        for node in self.sim.nodes:
            node.restart()
            node.resume()
            execute(node.store, b"del", b"sick")
        self.sim.heal()


@pytest.fixture
def make_crowd():
    with contextlib.ExitStack() as stack:

        def make(**options):
            crowd = Crowd(**options)
            stack.callback(crowd.sim.close)
            return crowd

        yield make


def test_all_are_served_for_a_few_commands_each(make_crowd):
    crowd = make_crowd()
    crowd.begin()
    crowd.sim.run()
    assert sorted(number for _, number in crowd.served) == list(range(WAITERS))
    sent = [event for event in crowd.sim.trace.events if isinstance(event, Sent) and event.client == "a"]
    assert len(sent) <= 6 * WAITERS


def test_another_client_is_served_beside_a_crowd(make_crowd):
    crowd = make_crowd()
    crowd.begin()
    crowd.sim.run(until=1.5)
    crowd.begin(crowd.b, 10)
    crowd.sim.run()
    positions = [i for i, (name, _) in enumerate(crowd.served) if name == "b"]
    assert len(positions) == 10
    assert max(positions) < LIMIT + 50, "no more than the front comes first"


def test_only_the_front_asks_and_waiters_that_are_cancelled_make_room_for_others(make_crowd):
    crowd = make_crowd()
    crowd.b.start(crowd.hold("x", 5.0))
    crowd.sim.run(until=1.5)
    tasks = crowd.begin()
    crowd.sim.run(until=3.0)
    assert len(crowd.asked()) == LIMIT == 64, "as docs/locks/lock.md says"
    for task in [*tasks[:LIMIT], *tasks[-50:]]:
        task.cancel()
    crowd.sim.run()
    assert sorted(number for _, number in crowd.served) == list(range(LIMIT, WAITERS - 50))


# Each task wants its own lock, and the nodes are away.


@pytest.mark.parametrize("trouble", ["hang", "sicken", "forget", *swept("crash", "part")])
def test_crowd_asks_little_in_an_outage_and_is_served_soon_after_it(make_crowd, trouble):
    """Nodes that may have forgotten something are back at once, but do not count until their guard ends."""
    guard = 20.0 if trouble == "forget" else 0.0
    crowd = make_crowd(lease=guard or 60.0, guard=guard, each_its_own=True)
    getattr(crowd, trouble)()
    crowd.begin()
    crowd.sim.run(until=20.0)
    assert not crowd.served
    assert 20 < len(crowd.asks(since=2.0)) <= PROBES * 18, "some waiter always looks, and never a crowd"
    if guard:
        crowd.sim.run(until=26.0)
    else:
        crowd.recover()
        crowd.sim.run(until=24.0)
        assert len(crowd.asks(since=20.0)) <= 1.2 * WAITERS
    assert len(crowd.served) == WAITERS


def test_held_locks_outlast_an_outage_though_a_crowd_waits(make_crowd):
    crowd = make_crowd(lease=10.0, each_its_own=True)
    client = crowd.clients[crowd.a]
    lost = []

    async def hold():
        for i in range(100):
            await client.get_lock(f"held{i}", on_lost=lost.append).acquire()
        await asyncio.sleep(3600.0)

    crowd.a.start(hold())
    crowd.sim.run(until=2.0)
    for node in crowd.sim.nodes:
        node.hang()
    crowd.begin()
    crowd.sim.run(until=8.0)
    crowd.recover()
    crowd.sim.run(until=30.0)
    assert len(crowd.served) == WAITERS
    assert not lost
    assert len(client._runner.session.holds) == 100
