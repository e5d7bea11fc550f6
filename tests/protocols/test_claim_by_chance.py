"""A new claim under random answers, against what must hold whatever they are."""

import math
import random

import pytest

from redsync._core.effects import Broadcast, Tell, Wait
from redsync._core.quorum import Choice
from redsync._protocols.claim import acquire_new
from redsync._protocols.fair_lock import FAIR_LOCK
from redsync._protocols.lock import LOCK
from redsync.exceptions import KeyTypeError, QuorumError
from tests.support.replies import FOREIGN, NEW, OURS, A, B, held

DRAW = b"+"


class Chance:
    """Answers at random, and checks after each effect what the protocol owes to its promises."""

    def __init__(self, rng, make_toy):
        self.rng = rng
        self.toy = make_toy(rng.randint(1, 7), luck=rng.random(), lease=rng.choice([0.5, 1.0, 5.0, 30.0]))
        self.quorum = self.toy.n // 2 + 1
        self.timeout = rng.choice([0.0, 0.01, 0.3, 3.0, None])
        self.deadline = math.inf if self.timeout is None else 1000.0 + self.timeout
        self.kind = rng.choice([LOCK, FAIR_LOCK])
        self.lease = rng.choice([None, None, None, 2.0])
        self.holds = rng.choice([1, 1, 1, 2])
        self.kept_lease = self.toy.session.timing.lease if self.lease is None else self.lease
        # Which nodes were asked: ever, and since the last undo.
        self.reach = self.since = 0
        self.undone = set()
        self.may_ask_again = False
        self.loose = False  # A node may keep a claim of a round that was not undone.
        self.queued = False
        self.mute = False  # Too few nodes answered in the last round: nothing may keep others waiting.
        self.rounds = 0
        self.trace = []
        self.last = None
        # What was asked for last, and who has handed it over; nothing after an undo.
        self.mark, self.marks, self.ticket = None, set(), 0
        self.asked_at = self.kept = 0.0
        self.handed = 0

    def demand(self):
        fields = {"kind": self.kind, "lease": self.lease, "holds": self.holds, "crowded": self.rng.random() < 0.4}
        return self.toy.demand(timeout=self.timeout, **fields)

    @property
    def is_handed_over(self):
        """Whether a quorum has handed over what was asked for last, lately enough."""
        until = self.toy.session.timing.valid_until(self.asked_at, self.kept)
        return self.handed.bit_count() >= self.quorum and self.toy.now < (self.asked_at + until) / 2

    def replies(self, sent):
        """What each node says: most agree in most rounds; a node that was not asked has failed."""
        rng = self.rng
        refusals = [held(rng.random(), A), held(3.0, B)]
        if self.kind is FAIR_LOCK:
            refusals = [[*refusal, rng.randint(1, 3)] for refusal in refusals]
        usual = rng.choice([refusals[0], refusals[1], refusals[1], NEW, None])
        others = [NEW, NEW, OURS, *refusals, "down", None, FOREIGN]
        strange = rng.choice([0.0, 0.1, 1.0])
        said = [rng.choice(others) if usual is None or rng.random() < strange else usual for _ in range(self.toy.n)]
        if self.timeout is None and self.rounds > 30:
            said = [NEW] * self.toy.n
        return [reply if sent >> node & 1 else "kept out" for node, reply in enumerate(said)]

    def __call__(self, described, effect):
        self.trace.append(described)
        last, self.last = self.last, effect
        if isinstance(last, Broadcast):
            self.check_what_follows_a_round(effect)
        if isinstance(effect, Tell):
            return self.undo(effect)
        if isinstance(effect, Wait):
            return self.sleep(effect)
        assert not isinstance(last, Tell), "after an undo comes a pause"
        return self.ask(effect)

    def check_what_follows_a_round(self, effect):
        tally, now = self.toy.tallies[-1], self.toy.now
        clean = tally.refused == tally.sent.bit_count()
        self.mute = mute = tally.without_quorum or tally.won
        self.loose |= not clean
        if isinstance(effect, Broadcast):
            # What some may have granted is asked for again at once, this time for a place too.
            assert self.may_ask_again
            assert not mute
            assert effect.listen is not None
        elif isinstance(effect, Wait):
            assert clean, "undone on all nodes before anything else happens"
            assert not mute or not tally.sent
            assert (effect.retry_at is not None) == mute
            assert now < self.deadline
        else:
            needed = self.loose or mute or now >= self.deadline or FOREIGN in tally.replies
            assert needed, "what is handed over meanwhile would be lost"

    def undo(self, effect):
        owed = self.reach if effect.command.args[1] else self.since
        assert effect.owed_to & owed == owed
        assert effect.command.args[0] == self.toy.commands[-1].args[0], "what was asked for"
        assert effect.command.args[0] not in self.undone, "each try after an undo is a claim of its own"
        self.undone.add(effect.command.args[0])
        self.since = 0
        assert effect.owed_until >= self.toy.now + self.kept_lease
        if effect.command.args[1]:
            assert self.queued
            over = self.toy.now >= self.deadline or FOREIGN in self.toy.tallies[-1].replies
            assert over or self.ticket == DRAW or (self.mute and self.kind is LOCK)
            self.queued = False
            self.ticket = 0
        self.loose, self.mark = False, None

    def sleep(self, effect):
        now, rng = self.toy.now, self.rng
        assert effect.until <= self.deadline
        until = effect.until if effect.retry_at is None else min(effect.until, effect.retry_at)
        assert now <= until <= now + 1.6
        assert (effect.key is not None) <= self.queued
        if effect.retry_at is None:
            assert effect.mark == self.mark, "the latest ask's, unless that was undone or lets nothing be handed over"
        assert effect.mark is None or effect.key is not None
        handed = rng.getrandbits(self.toy.n) | rng.choice([0, 0, self.toy.session.all_nodes])
        self.handed = handed if effect.mark is not None and rng.random() < 0.5 else 0
        return self.toy.slept(rng.choice([None, 0.0, rng.random() * (until - now)]), handed=self.handed)

    def ask(self, effect):
        now, rng = self.toy.now, self.rng
        assert not self.is_handed_over
        assert effect.timeout <= max(self.deadline - now, 0.05) or self.timeout == 0
        self.note_place(effect, now)
        self.rounds += 1
        sent = sum(1 << node for node in range(self.toy.n) if rng.random() < 0.9)
        if self.timeout is None and self.rounds > 30:
            sent = self.toy.session.all_nodes
        self.reach |= sent
        self.since |= sent
        takes = rng.choice([0.0, 0.001, 0.05, 40.0 if rng.random() < 0.2 else 0.0])
        return self.toy.answers(*self.replies(sent), takes=takes, sent=sent)

    def note_place(self, effect, now):
        args = effect.command.args
        kept, ticket, _, mark = args[4:] or (0, 0, b"", b"0")
        by_ticket = self.kind is FAIR_LOCK
        placed = ticket != 0 if by_ticket else bool(args[4:])
        self.may_ask_again = self.timeout != 0 and (ticket in {0, DRAW} if by_ticket else not placed)
        assert not (placed and self.mute and self.rounds), "a place that it can't use is not renewed"
        if by_ticket and not (self.mute and self.rounds):
            assert self.ticket in {0, DRAW} or ticket == self.ticket, "who has a place keeps it"
            self.ticket = ticket
        self.queued |= effect.listen is not None
        may_be_handed = self.lease is None and self.holds == 1 and self.kept_lease >= 1
        assert (mark != b"0") == (placed and may_be_handed)
        assert mark not in self.marks
        self.mark = mark if mark != b"0" else None
        self.marks |= {mark} - {b"0"}
        self.asked_at, self.kept, self.handed = now, kept / 1000, 0
        if placed:
            assert self.kept == min(3.0, self.kept_lease)


def outcome(chance, state, error):
    """Check how an acquire has ended; return which way that was."""
    toy = chance.toy
    tally = toy.tallies[-1]
    timing = toy.session.timing
    in_time = toy.now < timing.valid_until(tally.sent_at, chance.kept_lease)
    if state is not None:
        assert list(toy.session.holds) == [state]
        assert state.touched == chance.reach
        assert state.valid(toy.now)
        assert state.kept_until >= tally.at + chance.kept_lease
        if isinstance(toy.effects[-1], Wait):
            assert chance.is_handed_over
            assert state.valid_until == pytest.approx(timing.valid_until(chance.asked_at, chance.kept))
            assert toy.now < state.renew_at < state.valid_until
            return "handed over"
        assert isinstance(toy.effects[-1], Broadcast)
        assert tally.choices.count(Choice.GRANTED) >= chance.quorum
        assert state.valid_until == pytest.approx(timing.valid_until(tally.sent_at, chance.kept_lease))
        return "won"
    assert not (tally.won and in_time)
    assert isinstance(toy.effects[-1], Tell), "a last undo"
    assert not chance.queued, "and the place is left"
    assert len(toy.session.holds) == 0
    if not isinstance(error, KeyTypeError):
        assert toy.now >= chance.deadline
        *_, before, _ = [None, *toy.tallies]
        hurried = toy.asked[-1].timeout < timing.round_timeout(chance.kept_lease)
        held = hurried and before is not None and not (before.without_quorum or before.won)
        outage = tally.failed > toy.n - tally.quorum or tally.won
        assert isinstance(error, QuorumError) == (outage and not held)
    return type(error).__name__


def test_acquire_keeps_its_promises_under_random_answers(make_toy):
    seed = random.randrange(2**32)
    print("seed", seed)
    outcomes = set()
    for i in range(2_000):
        chance = Chance(random.Random(seed + i), make_toy)
        toy = chance.toy
        error = state = None
        demand = chance.demand()
        try:
            try:
                state = toy.drive(acquire_new(toy.session, demand, toy.now, toy.now), chance)
            except (QuorumError, KeyTypeError) as raised:
                error = raised
            assert demand.receipt.state is state
            outcomes.add(outcome(chance, state, error))
            if chance.timeout == 0:
                assert chance.rounds == 1
                assert not chance.marks
        except AssertionError as failure:
            failure.add_note(f"seed {seed} + {i}: {chance.trace}")
            raise
    assert outcomes == {"won", "handed over", "NoneType", "QuorumError", "KeyTypeError"}
