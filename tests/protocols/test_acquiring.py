"""A new claim: what it asks, and when; won, lost, split, or won too late; with a driver made of paper."""

import gc
import weakref
from functools import partial

import pytest

from redsync._core.permits import Limit, SlotKeys
from redsync._core.quorum import Choice
from redsync._protocols.claims import Claim
from redsync._protocols.fenced_lock import FENCED_LOCK, Fence, FencedClaim
from redsync._protocols.holding import release
from redsync._protocols.lock import FAIR_LOCK, LOCK
from redsync._protocols.semaphore import SEMAPHORE
from redsync._protocols.slot_claims import SlotClaim
from redsync.exceptions import KeyTypeError, QuorumError
from tests.support.toy_replies import (
    NEW,
    SPLIT,
    WRONG_TYPE,
    A,
    B,
    busy,
    held,
    kind_there,
    waiting_script,
    without_quorum,
    won,
)

ALL = 0b11111
LEASE, DRIFT = 30.0, 0.302


# Won.


def test_acquire_is_won_by_a_quorum_of_granted(toy):
    state = toy.acquire(("ask lock_acquire", toy.answers(NEW, "down", NEW, held(), NEW)))
    assert state.valid_until == pytest.approx(1000.0 + LEASE - DRIFT)
    assert state.renew_at == pytest.approx(1000.5), "between one and two timeouts later"
    assert (state.count, state.lease, state.live, state.lost) == (1, LEASE, True, None)
    assert list(toy.session.holds) == [state]
    assert toy.owner.holds[toy.keys.lock] is state
    assert toy.alarms == 1


def test_hold_that_acquire_returns_is_valid_at_that_instant(toy):
    """Even if max_hold is over before the nodes have answered."""
    late = toy.all_say(NEW, takes=0.2)
    script = [("ask lock_acquire", late), "tell lock_release"]
    with pytest.raises(QuorumError):
        toy.acquire(*script, max_hold=0.1, timeout=0.0)
    assert len(toy.session.holds) == 0


# Won too late.


@pytest.mark.parametrize("lateness", [0.0, 0.001, 60.0])
def test_acquire_won_too_late_is_rolled_back_and_not_returned(toy, lateness):
    late = toy.answers(NEW, NEW, NEW, None, None, takes=LEASE - DRIFT + lateness)
    with pytest.raises(QuorumError) as caught:
        toy.acquire(("ask lock_acquire", late), "tell lock_release", timeout=0.0)
    assert [vote.choice for vote in caught.value.votes].count(Choice.GRANTED) == 3
    assert "0 of 5 nodes failed" not in str(caught.value)
    assert len(toy.session.holds) == 0
    assert toy.requested.state is None
    assert toy.told[0].deliver_to == ALL


def test_acquire_won_too_late_does_not_blame_foreign_values_on_a_minority(toy):
    late = toy.answers(WRONG_TYPE, NEW, NEW, NEW, NEW, takes=LEASE)
    with pytest.raises(QuorumError):
        toy.acquire(("ask lock_acquire", late), "tell lock_release", timeout=0.0)


def test_acquire_won_too_late_is_tried_again_within_the_timeout(toy):
    state = toy.acquire(
        ("ask lock_acquire", toy.all_say(NEW, takes=LEASE)),
        "tell lock_release",
        ("wait", toy.slept()),
        ("ask lock_acquire", won(toy)),
        timeout=100.0,
    )
    assert state.valid_until == pytest.approx(toy.now - 0.001 + LEASE - DRIFT)


# Lost without waiting.


def test_busy_lock_is_none_at_once_without_blocking(toy):
    assert toy.acquire(("ask lock_acquire", busy(toy)), "tell lock_release", timeout=0.0) is None
    (rollback,) = toy.told
    assert rollback.command.keys == toy.keys.all
    assert rollback.command.args == (toy.owner.claim(1), 0, toy.keys.channel)
    assert (rollback.owner, rollback.deliver_to) == (toy.owner, ALL)
    assert len(toy.session.holds) == 0


# Memory of nodes and of Python.


@pytest.mark.parametrize(("guard", "lease", "expected"), [(0.0, None, 0.0), (30.0, None, 30.0), (30.0, 600.0, 600.0)])
@pytest.mark.parametrize("crowded", [False, True])
def test_acquire_asks_only_nodes_that_remember_for_long_enough(make_toy, guard, lease, expected, crowded):
    toy = make_toy(restart_guard=guard)
    step = "ask lock_acquire for a place" if crowded else "ask lock_acquire"
    toy.acquire((step, won(toy)), lease=lease, crowded=crowded)
    (effect,) = toy.effects
    assert effect.guard == expected
    said = b"%d,-," % (expected * 1000) if expected else 0
    assert effect.command.words[3] == said, "the node's script checks too"


FENCED = partial(FencedClaim, fence=Fence())
SLOTS = partial(SlotClaim, limit=Limit(4))


@pytest.mark.parametrize(
    ("kind", "claims", "granted"),
    [(LOCK, Claim, 1), (FAIR_LOCK, Claim, 1), (FENCED_LOCK, FENCED, 7), (SEMAPHORE, SLOTS, [b"2", b""])],
)
def test_released_hold_is_freed_without_the_garbage_collector(toy, kind, claims, granted):
    """Nothing that it refers to may refer to it: it would outlive its release."""

    class Listener:
        def __call__(self, state):
            raise AssertionError("nothing is lost")

    listener = Listener()
    freed = weakref.ref(listener)
    keys = SlotKeys.of(b"redsync:", b"x") if kind is SEMAPHORE else toy.keys
    place = " for a place" if kind in (FAIR_LOCK, SEMAPHORE) else ""
    steps = toy.acquiring(kind=kind, claims=claims, keys=keys, on_lost=listener)
    gc.disable()
    try:
        state = toy.play(steps, (f"ask {kind.acquire.name}{place}", toy.all_say(granted)))
        toy.play(release(toy.session, state, toy.now), (f"ask {kind.release.name}", toy.all_say(1)))
        toy.effects.clear()
        toy.tallies.clear()
        del listener, state, toy.requested
        assert freed() is None
    finally:
        gc.enable()


# Split votes.


def test_vote_is_not_split_when_one_owner_has_a_quorum(toy):
    """Its answers are enough for a first try, which does not wait for the others."""
    toy.acquire(
        ("ask lock_acquire", toy.answers(held(by=A), held(by=A), held(by=A), None, None)),
        ("ask lock_acquire for a place", won(toy)),
    )
    assert toy.tallies[0].choices[3:] == [None, None]


@pytest.mark.parametrize(
    "replies",
    [
        SPLIT,
        (held(by=A), held(by=A), held(by=B), None, None),
        (held(by=A), held(by=A), held(by=B), "down", NEW),
        (held(by=A), held(by=B), held(by=B), held(by=A), NEW),
        (NEW, NEW, held(by=A), held(by=A)),
    ],
)
def test_vote_counts_as_split_if_all_answered_and_no_owner_visibly_has_a_quorum(make_toy, replies):
    """A silent node may complete one. But nothing wakes a waiter that sleeps through a split vote."""
    pauses = set()
    for random in (0.1, 0.5, 0.9):
        toy = make_toy(len(replies), random=random)
        toy.acquire(
            ("ask lock_acquire", toy.answers(*replies)),
            "tell lock_release, stay",
            ("wait", toy.slept()),
            ("ask lock_acquire for a place", won(toy)),
        )
        pauses.add(toy.waits[0].until - toy.tallies[0].at)
    assert 0 < min(pauses) < max(pauses) <= 0.05
    assert len(pauses) == 3, "contenders pause differently"


# Foreign values.


def test_key_of_another_type_is_an_error_at_once_even_when_blocking(toy):
    with pytest.raises(KeyTypeError, match="the key of lock 'x'") as caught:
        toy.acquire(("ask lock_acquire", toy.all_say(WRONG_TYPE)), "tell lock_release", kind_there(toy))
    assert "holds a value of type list" in str(caught.value)
    assert caught.value.name == "x"
    assert len(caught.value.votes) == 5


def test_foreign_values_make_a_waiter_leave_its_queues(toy):
    refused = "ask lock_acquire for a place", toy.all_say(WRONG_TYPE)
    with pytest.raises(KeyTypeError):
        toy.acquire(refused, "tell lock_release", kind_there(toy), crowded=True)


# For a claim alone, or a moment later for a place too, if the latest acquire met others.

PLACE = "ask lock_acquire for a place"
ALONE = "ask lock_acquire"


def pause(toy):
    return "wait", toy.slept()


def test_acquire_after_one_that_waited_asks_for_a_place_at_once(toy):
    """Whichever object had to wait: programs make one for each acquisition."""
    toy.give_back(toy.acquire(*waiting_script(toy)))
    toy.give_back(toy.acquire(pause(toy), (PLACE, won(toy))))
    toy.give_back(toy.acquire((ALONE, won(toy))))


@pytest.mark.parametrize("timeout", [0.0, 0.3])
def test_acquire_after_one_that_was_refused_asks_for_a_place_at_once(toy, timeout):
    waiting = [(PLACE, busy(toy)), ("wait for wake-up", toy.slept()), (PLACE, busy(toy)), "tell lock_release"]
    rest = waiting if timeout else ["tell lock_release"]
    assert toy.acquire((ALONE, busy(toy)), *rest, timeout=timeout) is None
    assert toy.acquire(pause(toy), (PLACE, won(toy)))


def test_acquire_of_another_lock_or_with_one_try_asks_for_no_place(toy):
    toy.give_back(toy.acquire(*waiting_script(toy)))
    assert toy.acquire((ALONE, won(toy)), name="y")
    toy.give_back(toy.acquire((ALONE, won(toy)), timeout=0.0))


def test_acquire_after_a_split_vote_asks_for_a_place_at_once(toy):
    split = (ALONE, toy.answers(*SPLIT)), "tell lock_release, stay", ("wait", toy.slept()), (PLACE, won(toy))
    toy.give_back(toy.acquire(*split))
    assert toy.acquire(pause(toy), (PLACE, won(toy)))


def test_acquire_without_a_quorum_tells_the_next_one_nothing(toy):
    with pytest.raises(QuorumError):
        toy.acquire((ALONE, without_quorum(toy)), timeout=0.0)
    toy.give_back(toy.acquire(*waiting_script(toy)))
    with pytest.raises(QuorumError):
        toy.acquire((ALONE, without_quorum(toy)), timeout=0.0)
    toy.give_back(toy.acquire(pause(toy), (PLACE, won(toy))))
