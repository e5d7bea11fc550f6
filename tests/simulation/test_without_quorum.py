"""A waiter without a quorum delays waiters that have one for at most as long as its place is kept.

Node 3 is down and v is cut off from node 2, so v reaches only node 1, where it heads the queue. w reaches 1 and 2.
"""

import asyncio

import pytest

from tests.simulation.trial import Trial
from tests.support.sweeps import swept

LEASE = 2.0
WAYS = {
    "lock": lambda client: client.get_lock("x"),
    "fair": lambda client: client.get_fair_lock("x"),
    "fenced": lambda client: client.get_fenced_lock("x"),
    "mutex": lambda client: client.get_mutex("x"),
    "writer": lambda client: client.get_read_write_lock("x").write_lock,
}


async def hold(take, seconds):
    async with take:
        await asyncio.sleep(seconds)


async def wait(machine, take):
    async with take:
        machine.served_at = machine.sim.now


def starve(seed, first, second, *, then=None):
    """Let v wait for `first(client)` and w for `second(client)`; return the instants at which they are served."""
    with Trial(seed, nodes=3, lease=LEASE, restart_guard=LEASE) as sim:
        h, v, w = (sim.machine(name) for name in "hvw")
        v.served_at = w.served_at = None
        h.start(hold(second(h.client()) if then is None else then(h.client()), 1.5))
        sim.run(until=0.5)
        v.start(wait(v, first(v.client())))
        sim.run(until=1.0)
        sim.nodes[2].crash()
        sim.run(until=1.2)
        sim.partition(v, 1)
        sim.run(until=3.0)
        assert v.served_at is None
        w.start(wait(w, second(w.client())))
        sim.run(until=3.0 + LEASE + 2.5)
        assert v.served_at is None
        served_at = w.served_at
        assert served_at is not None, "w waits for v, which can't get it"
        sim.heal()
        sim.nodes[2].restart()
        sim.run()
        assert v.served_at is not None
    return v.served_at, served_at


@pytest.mark.parametrize("kind", WAYS)
@pytest.mark.parametrize("seed", [1, *swept(2, 3)])
def test_waiter_without_quorum_does_not_keep_a_lock_from_one_that_has_it(seed, kind):
    starve(seed, WAYS[kind], WAYS[kind])


@pytest.mark.parametrize("seed", [1, *swept(2, 3)])
def test_writer_without_quorum_does_not_keep_out_readers(seed):
    starve(seed, WAYS["writer"], lambda client: client.get_read_write_lock("x").read_lock, then=WAYS["writer"])


def semaphore(client, n):
    semaphore = client.get_semaphore("x", 2)

    class All:
        async def __aenter__(self):
            self._permit = await semaphore.acquire(n=n)

        async def __aexit__(self, *_):
            await self._permit.release()

    return All()


@pytest.mark.parametrize("seed", [1, *swept(2, 3)])
def test_permit_without_quorum_does_not_keep_its_slots_from_those_behind_it(seed):
    starve(seed, lambda client: semaphore(client, 2), lambda client: semaphore(client, 1))


@pytest.mark.parametrize("seed", [1, *swept(2, 3)])
def test_waiter_of_a_fair_lock_keeps_its_turn_through_a_brief_outage(seed):
    """Its place lasts: owners that ask during the outage come after it."""
    with Trial(seed, nodes=3, lease=LEASE, restart_guard=LEASE) as sim:
        h, v, w = (sim.machine(name) for name in "hvw")
        clients = {machine: machine.client() for machine in (h, v, w)}
        h.start(hold(WAYS["fair"](clients[h]), 2.8))
        sim.run(until=0.5)
        v.start(wait(v, WAYS["fair"](clients[v])))
        sim.run(until=1.5)
        sim.partition(v, 0, 1)
        sim.run(until=1.8)
        w.start(wait(w, WAYS["fair"](clients[w])))
        sim.run(until=2.5)
        sim.heal()
        sim.run()
        assert v.served_at < w.served_at
