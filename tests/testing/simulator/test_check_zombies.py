"""The checker of zombies: it finds what an attempt, a release or a loss leaves behind."""

import asyncio
import re

import pytest

from redsync._drivers import link_sets
from redsync._drivers.pending_releases import PendingReleases
from redsync._protocols.attempts import Attempt
from redsync.testing.simulator import Simulation, SimulationError
from redsync.testing.simulator.checks import Zombies
from redsync.testing.simulator.happenings import Executed
from tests.support.hunting import KEYS, break_script, connect, hunt
from tests.support.sweeps import swept

LEAVE = "    redis.call('zrem', KEYS[2], waiter)\n    redis.call('hdel', KEYS[3], waiter)\n"


@pytest.mark.parametrize(("kind", "first"), [("lock", 1), *swept(("read-write", 0), ("semaphore", 1), ("limiter", 0))])
def test_checker_finds_attempts_that_are_not_rolled_back(monkeypatch, kind, first):
    def roll_back(attempt, *, leave):
        return
        yield

    monkeypatch.setattr(Attempt, "roll_back", roll_back)
    assert re.search("ownerless|without a waiter", hunt(Zombies, range(first, first + 40), kind=kind))


@pytest.mark.parametrize(("kind", "first"), [("lock", 3), *swept(("read-write", 0), ("semaphore", 4))])
def test_checker_finds_waiters_that_stay_in_the_queue(monkeypatch, kind, first):
    undo = Attempt.roll_back
    monkeypatch.setattr(Attempt, "roll_back", lambda attempt, leave: undo(attempt, leave=False))
    # Or the lock is handed over to one of them.
    assert re.search("ownerless|without a waiter", hunt(Zombies, range(first, first + 40), kind=kind))


def test_checker_finds_release_that_forgets_the_queue():
    broken = break_script("lock_release", (LEAVE, ""))
    # Or the release hands the lock over to its own owner.
    assert re.search("ownerless|without a waiter", hunt(Zombies, range(1, 21), scripts=broken))


def test_checker_finds_claims_without_an_end():
    broken = break_script("lock_acquire", ("redis.call('pexpire', KEYS[1], ARGV[3])\n  if", "if"))
    assert hunt(Zombies, range(10), scripts=broken).endswith(" forever")


# By hand.


SIMULATION = {"seed": 1, "checkers": [Zombies], "lease": 2.0, "restart_guard": 0.0}


def test_claim_of_an_owner_that_holds_nothing_is_found(sim):
    runner = connect(sim)
    sim.check()
    owner = runner.new_owner().claim(1)
    sim.nodes[1].store.execute(b"hset", KEYS.lock, owner, b"1")
    sim.nodes[1].store.execute(b"pexpire", KEYS.lock, b"1000")
    sim.check()
    sim.timeline.now += 0.5
    with pytest.raises(SimulationError, match=r"zombies: node-2 keeps an ownerless claim: 'redsync:x' held by a:2"):
        sim.check()
    sim.machines[0].crash()
    sim.check()


def test_claim_that_lasts_for_longer_than_any_lease_is_found(sim):
    connect(sim)
    sim.nodes[1].store.execute(b"hset", KEYS.lock, b"stranger", b"1")
    sim.nodes[1].store.execute(b"pexpire", KEYS.lock, b"2000")
    sim.check()
    sim.nodes[1].store.execute(b"pexpire", KEYS.lock, b"2100")
    with pytest.raises(SimulationError, match=r"zombies: node-2 keeps 'redsync:x' for another 2100 ms"):
        sim.check()
    sim.nodes[1].store.flush()


def test_leftovers_of_strays_are_excused():
    """A command that arrives after the client abandoned its connection can't be rolled back in order."""
    with Simulation(seed=1, checkers=[Zombies], lease=60.0) as sim:
        machine = sim.machine("a")
        client = machine.client()
        sim.nodes[0].hang()

        async def visit():
            async with client.get_lock("x"):
                await asyncio.sleep(1.0)

        machine.start(visit())
        sim.run(until=30.0)
        sim.nodes[0].resume()
        sim.run(until=31.0)


def test_place_of_a_latch_is_found_unless_a_stray_left_it(sim):
    """The stray arrived after the waiter had left and its place had been removed over the next connection."""
    client = sim.machine("a").client()
    keys = b"redsync_latch:{redsync:x}", b"redsync_latch_waiters:{redsync:x}"

    async def wait():
        await client.get_count_down_latch("x").try_set_count(1)
        assert not await client.get_count_down_latch("x").wait(timeout=0.5)

    def execute(script, *args, stray):
        sim.saw(Executed(sim.now, 1, "a", script, keys, args, 1, stray, 0, None))
        sim.check()
        sim.run(until=sim.now + 0.5)
        sim.check()

    sim.machines[0].start(wait())
    sim.run()
    sim.run(until=sim.now + 0.5)
    place = f"redsync:wake:a {client.runner.client_id}:1".encode()
    sim.nodes[1].store.execute(b"zadd", keys[1], b"%d" % ((sim.nodes[1].clock.now() + 5.0) * 1000), place)
    execute("latch_exchange", b"86400000", place, b"5000", stray=True)
    with pytest.raises(SimulationError, match=r"keeps a latch place without a waiter: 'redsync_latch:.* held by a:1"):
        execute("latch_leave", place, stray=False)
    sim.nodes[1].store.flush()


def test_checker_finds_release_that_is_not_sent_again(monkeypatch):
    """A node that answered it with an error recovers, and keeps the claim."""
    monkeypatch.setattr(link_sets, "is_refused", lambda text: False)
    assert "keeps an ownerless claim" in hunt(Zombies, range(3, 23))


def test_checker_finds_missing_retries(monkeypatch):
    monkeypatch.setattr(PendingReleases, "refuse", lambda *_, **__: None)
    assert "keeps an ownerless claim" in hunt(Zombies, range(3, 23))
