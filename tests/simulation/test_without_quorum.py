"""A waiter without a quorum delays waiters that have one for at most as long as its place is kept.

Node 3 is down and v is cut off from node 2, so v reaches only node 1, where it heads the queue. w reaches 1 and 2. The
stories `starved_readers` and `fair_starved_waiter` continue until v is back.
"""

import asyncio

import pytest

from tests.simulation.trial import Trial
from tests.support.kinds import LOCKS
from tests.support.sweeps import swept

LEASE = 2.0


async def hold(take, seconds):
    async with take:
        await asyncio.sleep(seconds)


async def wait(machine, take):
    async with take:
        machine.served_at = machine.sim.now


def starve(seed, first, second):
    """Let v wait for `first(client)` and w for `second(client)`, which is served first."""
    with Trial(seed, nodes=3, lease=LEASE, restart_guard=LEASE) as sim:
        h, v, w = (sim.machine(name) for name in "hvw")
        v.served_at = w.served_at = None
        h.start(hold(second(h.client()), 1.5))
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
        assert w.served_at is not None, "w waits for v, which can't get it"
        sim.heal()
        sim.nodes[2].restart()
        sim.run()
        assert v.served_at is not None


@pytest.mark.parametrize("kind", ["lock", "fair", "fenced", "mutex", "write"])
@pytest.mark.parametrize("seed", [1, *swept(2, 3)])
def test_waiter_without_quorum_does_not_keep_a_lock_from_one_that_has_it(seed, kind):
    starve(seed, LOCKS[kind], LOCKS[kind])


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
