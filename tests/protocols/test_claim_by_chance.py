"""A new claim under random answers, against what must hold whatever they are."""

import math
import random

from redsync._core.effects import Broadcast, Tell, Wait
from redsync._core.quorum import Choice
from redsync._protocols.claim import acquire_new
from redsync.exceptions import KeyTypeError, QuorumError
from tests.support.replies import FOREIGN, NEW, OURS, A, B, held


class Chance:
    """Answers at random, and checks after each effect what the protocol owes to its promises."""

    def __init__(self, rng, make_toy):
        self.rng = rng
        self.toy = make_toy(rng.randint(1, 7), luck=rng.random(), lease=rng.choice([0.5, 5.0, 30.0]))
        self.timeout = rng.choice([0.0, 0.01, 0.3, 3.0, None])
        self.deadline = math.inf if self.timeout is None else 1000.0 + self.timeout
        self.reach = 0
        self.must_undo = self.may_ask_again = False
        self.queued = False
        self.rounds = 0
        self.trace = []

    def demand(self):
        return self.toy.demand(timeout=self.timeout, crowded=self.rng.random() < 0.3)

    def node_says(self):
        if self.timeout is None and self.rounds > 30:
            return NEW
        return self.rng.choice([NEW, NEW, NEW, OURS, held(self.rng.random(), A), held(3.0, B), "down", None, FOREIGN])

    def __call__(self, described, effect):
        self.trace.append(described)
        now = self.toy.now
        if self.may_ask_again and isinstance(effect, Broadcast):
            # What some may have granted is asked for again at once, this time for a place too.
            assert effect.listen is not None
        elif self.must_undo:
            assert isinstance(effect, Tell), "undone on all nodes before anything else happens"
            assert effect.owed_to & self.reach == self.reach
            assert effect.owed_until >= now + self.toy.session.timing.lease
            self.must_undo = self.may_ask_again = False
            return None
        if isinstance(effect, Wait):
            assert effect.until <= self.deadline
            assert now <= effect.until <= now + 1.6
            assert (effect.key is not None) <= self.queued
            return self.toy.slept(self.rng.choice([None, 0.0]))
        assert isinstance(effect, Broadcast)
        self.rounds += 1
        assert effect.timeout <= max(self.deadline - now, 0.05) or self.timeout == 0
        self.may_ask_again = not self.queued and effect.listen is None and self.timeout != 0
        self.queued |= effect.listen is not None
        sent = self.rng.getrandbits(self.toy.n)
        self.reach |= sent
        takes = self.rng.choice([0.0, 0.001, 0.05, 40.0 if self.rng.random() < 0.2 else 0.0])
        self.must_undo = True
        return self.toy.answers(*[self.node_says() for _ in range(self.toy.n)], takes=takes, sent=sent)


def test_acquire_keeps_its_promises_under_random_answers(make_toy):
    seed = random.randrange(2**32)
    print("seed", seed)
    outcomes = []
    for i in range(2_000):
        chance = Chance(random.Random(seed + i), make_toy)
        toy = chance.toy
        error = state = None
        demand = chance.demand()
        try:
            state = toy.drive(acquire_new(toy.session, demand, toy.now, toy.now), chance)
        except (QuorumError, KeyTypeError) as raised:
            error = raised
        note = f"seed {seed} + {i}: {chance.trace}"
        tally = toy.tallies[-1]
        assert demand.receipt.state is state, note
        in_time = toy.now < toy.session.timing.valid_until(tally.sent_at, toy.session.timing.lease)
        if state is not None:
            assert tally.choices.count(Choice.GRANTED) >= toy.n // 2 + 1, note
            assert in_time, note
            assert isinstance(toy.effects[-1], Broadcast), note
            assert list(toy.session.holds) == [state], note
            assert state.touched == chance.reach, note
        else:
            assert not (tally.won and in_time), note
            assert not chance.must_undo, note
            assert toy.told[-1].command.args[1] == int(chance.queued), note
            assert len(toy.session.holds) == 0, note
            if not isinstance(error, KeyTypeError):
                assert toy.now >= chance.deadline, note
                outage = tally.failed > toy.n - tally.quorum or tally.won
                assert isinstance(error, QuorumError) == outage, note
        if chance.timeout == 0:
            assert chance.rounds == 1, note
            assert not chance.queued, note
        outcomes.append(type(error).__name__ if error else state is not None)
    assert {True, False, "QuorumError", "KeyTypeError"} == set(outcomes)
