"""Many tasks of one client that wait for one lock: all are served, with few commands each, next to other clients."""

import asyncio

import pytest

from redsync._core.local_queues import LIMIT
from redsync._kinds import LOCKS
from redsync.exceptions import ClientClosedError, QuorumError
from redsync.testing.simulator.trace_events import Sent

WAITERS = 250
HELD = 0.01


class Crowd:
    """A client with `WAITERS` tasks, and another with a few."""

    def __init__(self, sim):
        self.sim = sim
        self.a, self.b = sim.machine("a"), sim.machine("b")
        self.clients = {machine: machine.client() for machine in (self.a, self.b)}
        self.served = []
        self.ended = {}
        self.tasks = []

    async def work(self, machine, number, timeout):
        lock = self.clients[machine].get_lock("x")
        try:
            if await lock.acquire(timeout=timeout):
                self.served.append((machine.name, number))
                await asyncio.sleep(HELD)
                await lock.release()
            outcome = "done"
        except (QuorumError, ClientClosedError, asyncio.CancelledError) as error:
            outcome = type(error).__name__
        self.ended[machine.name, number] = (self.sim.now, outcome)

    async def hold(self, seconds):
        async with self.clients[self.b].get_lock("x"):
            await asyncio.sleep(seconds)

    def begin(self, machine, number, timeout=None):
        started = [machine.start(self.work(machine, i, timeout)) for i in range(number)]
        self.tasks += started
        return started

    def sent(self, *scripts):
        return [each for each in self.sim.trace.events if isinstance(each, Sent) and each.script in scripts]


SIMULATION = {"seed": 5, "nodes": 3, "lease": 30.0, "checkers": ()}


@pytest.fixture
def crowd(sim):
    return Crowd(sim)


def test_all_are_served_for_a_few_commands_each(sim, crowd):
    crowd.begin(crowd.a, WAITERS)
    sim.run()
    assert sorted(number for _, number in crowd.served) == list(range(WAITERS))
    assert len(crowd.sent("lock_acquire", "lock_abandon", "lock_release")) <= 6 * WAITERS


def test_only_the_front_asks_while_the_lock_is_held(sim, crowd):
    crowd.b.start(crowd.hold(20.0))
    sim.run(until=1.0)
    crowd.begin(crowd.a, WAITERS)
    sim.run(until=15.0)
    asked = {each.args[0].rpartition(b":")[0] for each in crowd.sent("lock_acquire") if each.client == "a"}
    assert len(asked) == LIMIT == 64, "as docs/locks/lock.md says"


def test_another_client_is_served_beside_a_crowd(sim, crowd):
    crowd.begin(crowd.a, WAITERS)
    sim.run(until=0.5)
    crowd.begin(crowd.b, 10)
    sim.run()
    positions = [i for i, (name, _) in enumerate(crowd.served) if name == "b"]
    assert len(positions) == 10
    assert max(positions) < LIMIT + 50, "no more than the front comes first"


def test_timeouts_of_a_crowd_are_kept_and_mean_busy(sim, crowd):
    crowd.b.start(crowd.hold(20.0))
    sim.run(until=1.0)
    crowd.begin(crowd.a, WAITERS, timeout=3.0)
    sim.run(until=10.0)
    assert not crowd.served
    assert {outcome for _, outcome in crowd.ended.values()} == {"done"}
    assert all(4.0 <= ended <= 4.05 for ended, _ in crowd.ended.values())


def test_crowd_learns_that_nodes_are_away(sim, crowd):
    crowd.b.start(crowd.hold(60.0))
    sim.run(until=1.0)
    crowd.begin(crowd.a, WAITERS, timeout=10.0)
    sim.run(until=2.0)
    sim.partition(crowd.a, 0, 1)
    sim.run(until=20.0)
    assert {outcome for _, outcome in crowd.ended.values()} == {"QuorumError"}
    assert all(11.0 <= ended <= 11.05 for ended, _ in crowd.ended.values())


def test_waiters_that_are_cancelled_make_room_for_others(sim, crowd):
    crowd.b.start(crowd.hold(5.0))
    sim.run(until=1.0)
    tasks = crowd.begin(crowd.a, WAITERS)
    sim.run(until=2.0)
    for task in [*tasks[:LIMIT], *tasks[-50:]]:
        task.cancel()
    sim.run()
    assert sorted(number for _, number in crowd.served) == list(range(LIMIT, WAITERS - 50))


@pytest.mark.parametrize(
    "kind",
    [kind for kind in LOCKS if kind.waits != "queue"],
    ids=lambda kind: kind.word,
)
def test_waiters_of_other_kinds_do_not_queue_in_the_client(sim, crowd, kind):
    """An order of arrival begins with a ticket from the nodes; a pausing waiter has no place in the queue."""
    crowd.b.start(crowd.hold(60.0))
    sim.run(until=1.0)

    async def wait():
        await kind.maker(crowd.clients[crowd.a])("x").acquire(timeout=3.0)

    for _ in range(LIMIT + 10):
        crowd.a.start(wait())
    sim.run(until=1.1)
    sent = crowd.sent("lock_acquire", "fair_lock_acquire")
    asked = {each.args[0].rpartition(b":")[0] for each in sent if each.client == "a"}
    assert len(asked) == LIMIT + 10
