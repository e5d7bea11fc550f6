"""The latch under random faults: the shipped scripts on virtual nodes, commands lost, late, or not answered."""

import random

import pytest

from redsync._core.keys import LatchKeys
from redsync._core.ownership import Owner
from redsync._protocols.latch import Latch, count_down, count_left, set_count, wait_open
from redsync.exceptions import QuorumError
from tests.support.virtual import World

KEYS = LatchKeys.of(b"redsync:", b"x")


class Chance(World):
    """Several clients that count one latch down, others that wait, and what may be believed of it at any instant."""

    def __init__(self, seed, *, size, wipes):
        self.rng = random.Random(seed)
        self.trouble = self.rng.choice([0.0, 0.1, 0.3, 0.6])
        self.wipes = wipes
        super().__init__(self.rng.choice([1, 3, 3, 4, 5]), self._fate, self.rng.random)
        self.guard = 30.0 if self.n > 1 else 0.0
        self.christen()
        self.size, self.begun, self.done = size, 0, 0
        self.complaint = None

    def _fate(self, client, node):
        return self.rng.choice(["mute", "late", "lost"]) if self.rng.random() < self.trouble else "ok"

    def caller(self):
        session, owner = self.session(restart_guard=self.guard)
        return session, Latch("x", KEYS, 86_400.0), owner

    def look(self, what, is_open):
        if is_open and self.begun < self.size:
            self.complaint = f"{what} finds it open when {self.begun} of {self.size} have begun to be counted down"

    def worker(self, caller, times):
        session, latch, owner = caller
        for _ in range(times):
            self.begun += 1
            while True:
                try:
                    yield from self.play(count_down(session, latch, owner, self.now, n=1, patience=1.0))
                    break
                except QuorumError:
                    yield
            self.done += 1

    def waiter(self, caller):
        session, latch, owner = caller
        opened = False
        while not opened:
            try:
                opened = yield from self.play(
                    wait_open(session, latch, owner, self.rng.choice([0.0, 2.0, 9.0]), self.now)
                )
            except QuorumError:
                yield
            self.look(str(owner), opened)

    def onlooker(self):
        while self.done < self.size:
            session, latch, owner = self.caller()
            try:
                left = yield from self.play(count_left(session, latch, owner, self.now))
                self.look(str(owner), left == 0)
                assert left >= self.size - self.begun, "each call counts once"
            except QuorumError:
                pass
            yield

    def forgetful(self):
        """Let nodes forget everything: one, or all of them, now and then."""
        while self.done < self.size:
            for _ in range(self.rng.randrange(40)):
                yield
            for node in self.rng.sample(range(self.n), self.rng.choice([1, 1, self.n])):
                self.stores[node].flush()
            self.now += self.rng.choice([0.0, 40.0])
            for store in self.stores:
                if store.execute(b"GET", b"redsync_birth") is None and self.rng.random() < 0.7:
                    store.execute(b"SET", b"redsync_birth", b"newborn %d -" % store.now_ms)

    def go_on(self, played, *, until):
        """Let those who play take turns by chance."""
        for _ in range(20_000):
            if until() or not played:
                return
            each = self.rng.choice(played)
            try:
                next(each)
            except StopIteration:
                played.remove(each)
            assert self.complaint is None, self.complaint
        pytest.fail("it did not come to an end")


def another_thread(caller, serial):
    session, _, owner = caller
    return session, Latch("x", KEYS, 86_400.0), Owner.of(owner.client_id, 2 + serial)


def begin(chance, counters):
    """Set the latch; return those who count down and wait."""
    session, latch, owner = setter = chance.caller()
    trouble, chance.trouble = chance.trouble, 0.0
    assert chance.run(set_count(session, latch, owner, chance.size, chance.now)) is True
    waiters = [chance.waiter(setter), *(chance.waiter(chance.caller()) for _ in range(2))]
    # Two of them are threads of one client.
    workers = [chance.worker(chance.caller() if i > 1 else another_thread(setter, i), 1) for i in range(counters)]
    # Whoever waits has looked once.
    for waiter in waiters:
        for _ in range(3):
            next(waiter)
    chance.trouble = trouble
    return waiters, workers


def test_latch_opens_when_all_was_counted_down_and_not_before():
    seed = random.randrange(2**32)
    print("seed", seed)
    for i in range(60):
        chance = Chance(seed + i, size=3, wipes=False)
        waiters, workers = begin(chance, 3)
        chance.go_on([*waiters, *workers, chance.onlooker()], until=lambda: False)
        assert chance.done == 3


def test_latch_counts_each_call_once_and_stays_closed():
    seed = random.randrange(2**32)
    print("seed", seed)
    for i in range(60):
        chance = Chance(seed + i, size=5, wipes=False)
        _, workers = begin(chance, 3)
        chance.go_on(workers, until=lambda chance=chance: chance.done == 3)
        chance.trouble = 0.0
        session, latch, owner = chance.caller()
        assert chance.run(count_left(session, latch, owner, chance.now)) == 2
        assert chance.run(wait_open(session, latch, owner, 0.0, chance.now)) is False


def test_latch_is_not_opened_by_nodes_that_forget():
    """Any of them, also all, as long as somebody waits; and somebody who comes new can't tell, rather than be wrong."""
    seed = random.randrange(2**32)
    print("seed", seed)
    for i in range(25):
        chance = Chance(seed + i, size=3, wipes=True)
        waiters, workers = begin(chance, 2)
        chance.go_on(
            [*waiters, *workers, *([chance.onlooker()] if chance.n > 1 else []), chance.forgetful()],
            until=lambda chance=chance: chance.now > 1300,
        )
        assert chance.complaint is None
