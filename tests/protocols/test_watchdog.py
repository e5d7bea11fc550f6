"""The watchdog: renews due holds, reports lost ones, and sleeps in between."""

import math
from itertools import pairwise

import pytest

from redsync._core.holds import MOST
from redsync._core.observing import HoldLost
from redsync._core.timing import milliseconds
from redsync._protocols.lock import LOCK
from redsync._protocols.mutex import MUTEX
from redsync._protocols.renewal import extend
from redsync._protocols.semaphore import SEMAPHORE
from tests.protocols.conftest import Stop
from tests.support.slots import ASK, ToySemaphore, got
from tests.support.toy_replies import LOSS

OURS, HEALED, THEIRS = 2, 1, 0
ALL = 0b11111
LEASE, DRIFT = 30.0, 0.302


def take(toy, name="x", **fields):
    """Acquire a lock whose first renewal, a moment after the grant, is over."""
    state = toy.take(name, **fields)
    if state.renewed:
        state.renew_at = state.since + LEASE / 3
    return state


# Renewing.


def test_watchdog_renews_every_third_of_the_lease(toy):
    state = take(toy)
    steps = toy.run_watchdog(sleeps=5)
    assert [step for step in steps if step != "wait"] == ["ask lock_renew"] * 3, "it also looks at the former end"
    assert [tally.sent_at for tally in toy.tallies[1:]] == pytest.approx([1010.0, 1020.0, 1030.0])
    assert state.valid_until == pytest.approx(1030.0 + LEASE - DRIFT)


def test_watchdog_does_not_renew_an_explicit_lease(toy):
    state = take(toy, lease=2.0)
    toy.now = state.since
    take(toy, "of the same instant", lease=2.0)
    steps = toy.run_watchdog(sleeps=2)
    assert steps == ["wait", *LOSS, *LOSS, "wait"]
    assert toy.waits[0].until == state.valid_until
    assert toy.told[0].deliver_to == ALL
    assert state.lost
    assert toy.events[0].state is state
    assert toy.waits[-1].until == math.inf, "a lost hold is reported once"


def test_watchdog_renews_a_permit_with_its_own_lease_once_for_the_rest_of_it(semaphore):
    """A node may keep another slot for it, which would be lost to others until then."""
    toy = semaphore.toy
    state = semaphore.play((ASK, toy.all_say(got(2))), lease=9.0)
    end = state.valid_until
    steps = toy.run_watchdog(lambda _: [OURS], sleeps=2)
    assert steps == ["wait", "ask semaphore_renew", "wait"]
    assert [wait.until for wait in toy.waits] == [1000.5, end]
    assert toy.commands[-1].args[:4] == (1, state.claim, b"2", milliseconds((end - 1000.5) * 1.01 + 0.002))
    assert state.valid_until == end


@pytest.mark.parametrize("kind", [LOCK, MUTEX, SEMAPHORE])
def test_extended_hold_is_renewed_as_often_as_before_and_no_renewal_shortens_it(toy, kind):
    """Nodes that forgot it get it again for as long as its owner believes in it, by clocks that run 1 % faster."""
    state = ToySemaphore(toy).play((ASK, toy.all_say(got(2)))) if kind is SEMAPHORE else take(toy, kind=kind)
    state.renew_at = 1010.0
    toy.play(extend(toy.session, state, 300.0, toy.now), (f"ask {kind.renew.name}", toy.all_say([OURS])))
    end = state.valid_until
    toy.run_watchdog(lambda _: [OURS], sleeps=4)
    sent_at = [tally.sent_at for tally in toy.tallies[2:]]
    leases = [milliseconds((end - at) * 1.01 + 0.002) for at in sent_at]
    assert sent_at == pytest.approx([1010.0, 1020.0, 1030.0], abs=0.1)
    assert all(lease in command.args for command, lease in zip(toy.commands[2:], leases, strict=True))
    assert state.valid_until == end == pytest.approx(1000.0 + 300 * 0.99 - 0.002)


def test_watchdog_retries_silence_and_gives_up_when_the_validity_is_over(toy):
    state = take(toy)

    def answer(described, effect):
        if described == "wait":
            return toy.slept() if state.lost is None else Stop()
        return toy.codes(*["down"] * 5) if described == "ask lock_renew" else None

    with pytest.raises(Stop):
        toy.drive(toy.watchdog(), answer)
    end = 1000.0 + LEASE - DRIFT
    assert end <= toy.now <= end + 0.01, "lost at the end of its validity, neither earlier nor later"
    asked = [tally.sent_at for tally in toy.tallies[1:]]
    assert asked[0] == pytest.approx(1010.0)
    assert all(0 < later - earlier <= 1.3 for earlier, later in pairwise(asked))
    assert len(asked) < 200
    assert toy.events[-1] == HoldLost("x", str(toy.owner), state.lost, state)


# Many holds.


def renewals(toy):
    return [command for command in toy.commands if command.script.name == "lock_renew"]


def test_hold_without_a_quorum_is_tried_again_by_itself(toy):
    """The others of its command are renewed when they are due, together again."""
    states = [take(toy, f"lock {i}") for i in range(3)]
    toy.now = 1010.5
    undecided = toy.answers([2, 2, 2], [2, 2, 2], [2, 2, HEALED], [2, 2, THEIRS], "down")
    replies = iter([undecided, toy.codes(*[OURS] * 5), toy.all_say([2, 2, 2])])
    toy.run_watchdog(lambda command: next(replies), sleeps=3)
    assert [len(command.keys) for command in renewals(toy)] == [3, 1, 3]
    assert renewals(toy)[1].keys == (states[2].keys.lock,)
    assert [tally.sent_at for tally in toy.tallies[-3:]] == pytest.approx([1010.5, 1011.5, 1020.5], abs=0.01)
    assert all(state.lost is None for state in states)


def test_loss_is_reported_after_the_round_under_way_however_many_renewals_are_due(toy):
    """Each takes as long as a round may, because no quorum answers."""
    for i in range(5 * 200):
        take(toy, f"lock {i}").renew_at = 1010.0
    toy.now = 1000.0
    gone = take(toy, "gone", lease=10.5)
    told = []

    def answer(described, effect):
        if described == "wait":
            return toy.slept() if not told else Stop()
        if described == "notify HoldLost":
            told.append(toy.now)
        return toy.codes(*[None] * 5) if described == "ask lock_renew" else None

    with pytest.raises(Stop):
        toy.drive(toy.watchdog(), answer)
    assert toy.events[-1].state is gone
    assert gone.valid_until <= told[0] <= gone.valid_until + 0.25
    assert len(renewals(toy)) < 5


@pytest.mark.parametrize("end", [{"live": False}, {"lost": "a reason"}], ids=min)
def test_hold_that_ends_while_others_are_renewed_is_left_out(toy, end):
    """All due holds are found at one look, and renewed with several commands."""
    *kept, ended = [take(toy, f"lock {i}") for i in range(MOST + 2)]

    def answer(command):
        for field, value in end.items():
            setattr(ended, field, value)
        return [OURS] * len(command.keys)

    toy.run_watchdog(answer, sleeps=2)
    assert [key for command in renewals(toy) for key in command.keys] == [state.keys.lock for state in kept]


@pytest.mark.parametrize("at", range(12))
def test_watchdog_that_fails_anywhere_forgets_nothing(toy, at):
    """The next one renews the remaining holds, and reports the losses."""
    kept = [take(toy, f"lock {i}") for i in range(3)]
    kept.append(take(toy, "mutex", kind=MUTEX))
    kept.append(toy.acquire(("ask lock_acquire", toy.answers(1, 1, 1, "down", "down")), name="bare"))
    gone = [take(toy, f"gone {i}", lease=10.1 + i / 100) for i in range(2)]
    done = []

    def answer(described, effect):
        done.append(described)
        if len(done) == at + 1:
            return RuntimeError("a mistake")
        if described == "wait":
            return toy.slept()
        return toy.all_say([OURS] * len(toy.commands[-1].keys)) if described.startswith("ask") else None

    with pytest.raises(RuntimeError):
        toy.drive(toy.watchdog(), answer)
    toy.run_watchdog(sleeps=8)
    assert all(state.valid(toy.now) and state.renew_at > toy.now - 1.0 for state in kept)
    assert all(state.lost is not None for state in gone)
    assert toy.now > 1020.0
