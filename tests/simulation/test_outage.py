"""A crowd through an outage: few ask meanwhile, and all are served soon after the nodes are back."""

import asyncio
import contextlib

import pytest

from redsync._core.local_queues import RETRIERS
from redsync._core.scripts import Script
from redsync.exceptions import ClientClosedError, QuorumError
from redsync.testing.simulator.trace_events import Decided, Sent
from tests.simulation.stores import execute
from tests.simulation.trial import Trial
from tests.support.sweeps import swept

WAITERS = 200

PROBES = 101
"""Tries per second of all waiters, at most."""

SICK = "if redis.call('exists', 'sick') == 1 then return redis.error_reply('MISCONF errors writing to disk') end\n"


class Crowd:
    """A client whose `WAITERS` tasks want a lock each while its nodes are away."""

    def __init__(self, *, guard=0.0, lease=60.0):
        sick = {"lock_acquire": SICK + Script.load("lock_acquire").source.decode()}
        self.sim = Trial(seed=3, nodes=3, lease=lease, checkers=(), scripts=sick)
        self.machine = self.sim.machine("a")
        self.client = self.machine.client(restart_guard=guard)
        self.served = {}
        self.failed = {}
        self.tasks = []
        self.machine.start(self.client._runner.connect())
        self.sim.run(until=1.0)

    async def work(self, number, timeout):
        lock = self.client.get_lock(f"l{number}")
        try:
            if await lock.acquire(timeout=timeout):
                self.served[number] = self.sim.now
                await lock.release()
        except (QuorumError, ClientClosedError, asyncio.CancelledError) as error:
            self.failed[number] = (self.sim.now, type(error))

    def begin(self, timeout=None):
        self.tasks = [self.machine.start(self.work(number, timeout)) for number in range(WAITERS)]

    def asked(self, since):
        """Return how often the client has asked for a lock since that instant."""
        sent = (event for event in self.sim.trace.events if isinstance(event, Sent))
        return sum(each.script == "lock_acquire" and each.at >= since for each in sent)

    def hang(self, *nodes):
        for i in nodes or range(3):
            self.sim.nodes[i].hang()

    def crash(self):
        for node in self.sim.nodes:
            node.crash()

    def sicken(self):
        for node in self.sim.nodes:
            execute(node.store, b"set", b"sick", b"1")

    def part(self):
        self.sim.partition(self.machine, 0, 1)

    def recover(self):
        for node in self.sim.nodes:
            if node.state == "down":
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


@pytest.mark.parametrize("trouble", ["hang", "sicken", *swept("crash", "part")])
def test_crowd_asks_little_in_an_outage_and_is_served_soon_after_it(make_crowd, trouble):
    crowd = make_crowd()
    getattr(crowd, trouble)()
    crowd.begin()
    crowd.sim.run(until=16.0)
    assert not crowd.served
    assert 20 < crowd.asked(2.0) <= PROBES * 14, "some waiter always looks, and never a crowd"
    crowd.recover()
    crowd.sim.run(until=20.0)
    assert len(crowd.served) == WAITERS
    assert crowd.asked(16.0) <= 1.2 * WAITERS


def test_crowd_that_waits_for_the_end_of_a_guard_is_served_soon_after_it(make_crowd):
    """Nodes are connected and quick, but may have forgotten something."""
    crowd = make_crowd(guard=20.0, lease=20.0)
    crowd.crash()
    for node in crowd.sim.nodes:
        node.restart(forget=True)
    crowd.begin()
    crowd.sim.run(until=20.0)
    assert not crowd.served
    assert crowd.asked(2.0) <= PROBES * 18
    crowd.sim.run(until=26.0)
    assert len(crowd.served) == WAITERS


def test_nodes_that_are_back_are_not_asked_by_all_at_once(make_crowd):
    crowd = make_crowd()
    crowd.crash()
    crowd.begin()
    crowd.sim.run(until=5.0)
    crowd.recover()
    crowd.sim.run(until=10.0)
    first = min(crowd.served.values())
    under_way, most = 0, 0
    for event in crowd.sim.trace.events:
        if event.at >= first and isinstance(event, (Sent, Decided)):
            if isinstance(event, Sent) and event.script == "lock_acquire":
                under_way += 1
            elif isinstance(event, Decided) and under_way:
                under_way -= 1
            most = max(most, under_way)
    assert most <= RETRIERS
    assert len(crowd.served) == WAITERS


def test_timeouts_are_kept_in_an_outage(make_crowd):
    crowd = make_crowd()
    crowd.hang(0, 1)
    crowd.begin(timeout=3.0)
    crowd.sim.run(until=5.0)
    assert len(crowd.failed) == WAITERS
    for ended, error in crowd.failed.values():
        assert error is QuorumError
        assert 4.0 <= ended <= 4.05


def test_held_locks_outlast_an_outage_though_a_crowd_waits(make_crowd):
    crowd = make_crowd(lease=10.0)
    lost = []

    async def hold():
        for i in range(100):
            await crowd.client.get_lock(f"held{i}", on_lost=lost.append).acquire()
        await asyncio.sleep(3600.0)

    crowd.machine.start(hold())
    crowd.sim.run(until=2.0)
    crowd.hang()
    crowd.begin()
    crowd.sim.run(until=8.0)
    crowd.recover()
    crowd.sim.run(until=30.0)
    assert len(crowd.served) == WAITERS
    assert not lost
    assert len(crowd.client._runner.session.holds) == 100
