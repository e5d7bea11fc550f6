"""A whole lock and its claim: the ask, split rounds, and errors that rule it out."""

import gc
import weakref
from functools import partial

import pytest

from redsync._core.keys import LockKeys
from redsync._core.permits import Limit, SlotKeys
from redsync._protocols.claims import Claim
from redsync._protocols.fenced_lock import FENCED_LOCK, Fence, FencedClaim
from redsync._protocols.holding import release
from redsync._protocols.lock import FAIR_LOCK, LOCK
from redsync._protocols.semaphore import SEMAPHORE
from redsync._protocols.slot_claims import SlotClaim
from redsync.exceptions import KeyTypeError
from tests.support.toy_replies import NEW, SPLIT, WRONG_TYPE, A, B, held, won

LEASE, DRIFT = 30.0, 0.302


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


FENCED = partial(FencedClaim, fence=Fence(LockKeys.of(b"redsync:", b"x")))
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
            "tell lock_abandon",
            ("wait", toy.slept()),
            ("ask lock_acquire for a place", won(toy)),
        )
        pauses.add(toy.waits[0].until - toy.tallies[0].at)
    assert 0 < min(pauses) < max(pauses) <= 0.05
    assert len(pauses) == 3, "contenders pause differently"


# Foreign values.


def test_key_of_another_type_is_an_error_at_once_even_when_blocking(toy):
    with pytest.raises(KeyTypeError, match="another type") as caught:
        toy.acquire(("ask lock_acquire", toy.all_say(WRONG_TYPE)), "tell lock_abandon")
    assert caught.value.name == "x"
    assert len(caught.value.votes) == 5


def test_foreign_values_that_alone_keep_the_lock_away_are_an_error(toy):
    answers = toy.answers(WRONG_TYPE, NEW, NEW, "down", "down")
    with pytest.raises(KeyTypeError):
        toy.acquire(("ask lock_acquire", answers), "tell lock_abandon")


def test_foreign_values_make_a_waiter_leave_its_queues(toy):
    with pytest.raises(KeyTypeError):
        toy.acquire(("ask lock_acquire for a place", toy.all_say(WRONG_TYPE)), "tell lock_abandon, leave", crowded=True)
