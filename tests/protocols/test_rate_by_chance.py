"""The rate limiter's promise, whatever chance does: the real scripts on virtual nodes whose clocks run fast.

As for the semaphore: commands late, lost, unanswered, nodes that forget everything. Each success is noted at the latest
instant at which its caller may hear of it. At the end every window is looked at, wherever it begins. As the clock is
virtual, a window may last a day.
"""

import random

import pytest

from redsync._core.effects import Broadcast, Wait
from redsync._core.limits import Limit
from redsync._core.runner import Session
from redsync._core.slots import SlotKeys
from redsync._core.timing import Timing
from redsync._protocols import rate as protocol
from redsync._protocols import windows
from redsync._protocols.bids import Bid
from redsync._protocols.demands import Demand, Receipt
from redsync._protocols.semaphore import Pool
from redsync._protocols.windows import Window
from redsync.exceptions import QuorumError
from tests.protocols.test_semaphore_by_chance import EPOCH, Client, World

DRIFT = 0.01
DAY = 86_400.0


class Caller(Client):
    """A client of the rate limiter."""

    def __init__(self, world, number):
        super().__init__(world, number)
        timing = Timing(0.2, node_timeout=0.05, drift_factor=DRIFT, restart_guard=0.2)
        self.session = Session(world.n, timing, self.session.holds, world.rng.random)
        self.pool = Pool("x", SlotKeys.of(b"redsync:", b"x"), Limit(world.permits, int(world.per * 1e6)))
        self.window = Window(world.per, timing)
        self.ways = {}

    def perform(self, actor, effect):
        if isinstance(effect, Broadcast):
            # As long as the round may take, so long may the way to the caller.
            self.ways[effect.owner] = self.window.terms()[1]
        return super().perform(actor, effect)

    def live(self):
        rng, world = self.world.rng, self.world
        while True:
            wanted = rng.randint(1, min(2, world.permits))
            owner, timeout = self.owner(), rng.choice([0.0, 0.0, world.per / 2, 2 * world.per])
            bid = Bid("x", owner, wanted, self.pool.limit, rng.random, waits=timeout != 0, window=self.window)
            demand = Demand("x", protocol.RATE, self.pool.keys, owner, Receipt(), None, timeout, holds=wanted, bid=bid)
            try:
                if (yield from protocol.acquire(self.session, demand, self.pool, world.now)):
                    way = rng.random() * self.ways[owner] * world.slowness
                    world.successes += [world.now + way] * wanted
                elif rng.random() < 0.5:
                    yield Wait(world.now + rng.random() * world.per / 4)
            except QuorumError:
                continue


class Limited(World):
    """A world with a rate limiter in the place of the semaphore."""

    client = Caller

    def __init__(self, seed, per, slowness=1.0):
        self.per, self.slowness = per, slowness
        self.successes = []
        super().__init__(seed)

    def make_clock(self):
        fast = 1 + self.rng.random() * DRIFT
        return lambda: EPOCH + self.now * fast

    def step(self):
        super().step()
        # Now and then nothing happens for a good part of a window.
        if self.rng.random() < 0.01:
            self.now += self.rng.random() * self.per / 4

    def narrowest(self):
        """Return the shortest time in which more succeeded than are allowed."""
        times = sorted(self.successes)
        spans = (later - sooner for sooner, later in zip(times, times[self.permits :], strict=False))
        return min(spans, default=self.per)


def run(seeds, pers, **options):
    """Run as many worlds; return how many successes there were."""
    successes = 0
    for seed in seeds:
        world = Limited(seed, random.Random(seed).choice(pers), **options)
        try:
            for _ in range(4_000):
                world.step()
        finally:
            for actor in world.actors:
                actor.end()
        assert world.narrowest() >= world.per, f"seed {seed}: {world.permits + 1} within {world.narrowest()} s"
        assert all(not list(client.session.holds) for client in world.clients), "nobody holds anything"
        successes += len(world.successes)
    return successes


@pytest.mark.parametrize("pers", [(0.05, 0.3, 1.0), (60.0, DAY)], ids=["short", "long"])
def test_no_window_has_more_successes_than_the_rate_whatever_chance_does(pers):
    first = random.randrange(2**32)
    print("seed", first)
    assert run(range(first, first + 8), pers) > 10


def test_checker_notices_when_slots_are_kept_for_just_the_window(monkeypatch):
    monkeypatch.setattr(Window, "_lease", lambda self, _: self.per)
    with pytest.raises(AssertionError, match="within"):
        run(range(100), [0.3])


def test_checker_notices_when_late_rounds_count(monkeypatch):
    terms = Window.terms
    monkeypatch.setattr(Window, "terms", lambda self: (terms(self)[0], 10.0))
    # Allowances as small as can be, so that many rounds are late.
    monkeypatch.setattr(windows, "_AT_FIRST", 0.0)
    monkeypatch.setattr(windows, "_LEAST", 0.0)
    monkeypatch.setattr(windows, "_LEAST_SHARE", 0.001)
    monkeypatch.setattr(windows, "_EASE", 0.0)
    monkeypatch.setattr(windows, "_ROOM", 0.0)
    with pytest.raises(AssertionError, match="within"):
        run(range(100), [0.05], slowness=0.0)
