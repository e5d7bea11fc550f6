"""Handing over on a real server: who gives a lock back makes the claim of the head of the queue in the same step."""

import pytest

from redsync._core.keys import LockKeys
from redsync._core.memory import BIRTH_KEY

KEYS = LockKeys.of(b"redsync:", b"x")
ME, OTHER, THIRD, FOURTH = b"client-a:1", b"client-b:2", b"client-c:3", b"client-d:4"
WAKE = {owner: b"redsync:wake:" + owner.replace(b":", b"-") for owner in (ME, OTHER, THIRD, FOURTH)}
LEASE, PLACE = 30_000, 5_000
GUARD = 20_000
NEW, EXISTING = 1, 2
SLACK = 2_000
"""Milliseconds that a test on a busy machine may take."""


@pytest.fixture
def claims(queued_claims):
    """The scripts of each kind."""
    return queued_claims


@pytest.fixture
def heard(claims):
    """Listen for everybody; return a function that reads what was said since it was last called."""
    with claims.node.listening(*WAKE.values()) as subscription:
        yield lambda: claims.node.messages(subscription)


WAYS = {
    "release": lambda claims: claims.release(),
    "force_release": lambda claims: claims.force_release(),
    "abandon": lambda claims: claims.abandon(leave=True),
}


@pytest.fixture(params=WAYS)
def give_back(request, claims):
    """Each way in which a lock that ME holds is given back."""
    return lambda: WAYS[request.param](claims)


# Who gets it, and for how long.


def test_lock_is_handed_over_to_the_head_and_says_its_mark(claims, heard, give_back):
    claims.acquire()
    claims.queue(OTHER, waited=2_000, mark=7)
    claims.queue(THIRD, waited=1_000, mark=8)
    assert give_back() == 1
    assert claims.holder() == OTHER
    assert heard() == [claims.said(OTHER, 7)]
    assert claims.waiters() == [OTHER, THIRD], "it keeps its place until it gives the lock back"


@pytest.mark.parametrize("count", [1, 3])
def test_heir_has_one_hold_whatever_was_given_back(claims, heard, give_back, count):
    claims.acquire(count=count)
    claims.queue(OTHER, mark=7)
    give_back()
    assert claims.node.dump()[KEYS.lock] == (OTHER if claims.noun == "mutex" else {OTHER: b"1"})


@pytest.mark.parametrize("place", [PLACE, 10 * LEASE])
def test_heir_has_the_lock_for_as_long_as_its_place(claims, heard, give_back, lasts, place):
    """It may have stopped, and is then passed over when anybody else who waits would be."""
    claims.acquire(lease=LEASE)
    claims.queue(OTHER, place=place, mark=7)
    give_back()
    assert claims.holder() == OTHER
    assert lasts(claims.left(), place)


def test_heir_has_the_lock_for_what_is_left_of_its_place_only(claims, heard, give_back, lasts):
    claims.acquire()
    claims.queue(OTHER, place=PLACE, mark=7)
    claims.end_place(OTHER, after=3_000)
    give_back()
    assert claims.holder() == OTHER
    assert lasts(claims.left(), 3_000)


def test_heir_that_asks_already_has_it_and_gets_its_lease(claims, heard, lasts):
    claims.acquire()
    claims.queue(OTHER, mark=7)
    claims.release()
    assert claims.queue(OTHER, mark=8) == EXISTING
    assert claims.holder() == OTHER
    assert lasts(claims.left(), LEASE)
    assert claims.waiters() == ([OTHER] if claims.noun == "fair_lock" else []), "as after any ask that was granted"


def test_heir_that_renews_gets_its_lease(claims, heard, lasts):
    claims.acquire()
    claims.queue(OTHER, mark=7)
    claims.release()
    renewing = claims.node.run("mutex_renew" if claims.noun == "mutex" else "lock_renew", [KEYS.lock], OTHER, 1, LEASE)
    assert renewing == [2]
    assert lasts(claims.left(), LEASE)


def test_heir_is_told_the_mark_of_its_latest_ask(claims, heard):
    claims.acquire()
    for mark in (7, 8, 9):
        claims.queue(OTHER, mark=mark)
    claims.release()
    assert heard() == [claims.said(OTHER, 9)]


def test_newcomer_is_refused_by_the_heirs_claim(claims, heard, give_back, lasts):
    claims.acquire()
    claims.queue(OTHER, mark=7)
    give_back()
    remaining, holder = claims.queue(FOURTH, mark=8)[:2]
    assert holder == OTHER
    assert lasts(remaining, PLACE)
    assert claims.waiters() == [OTHER, FOURTH]


def test_lock_goes_down_the_queue_from_heir_to_heir(claims, heard):
    claims.acquire()
    claims.line_up(THIRD, OTHER, FOURTH, mark=7)
    for holder, heir in [(ME, THIRD), (THIRD, OTHER), (OTHER, FOURTH)]:
        assert claims.release(holder) == 1
        assert claims.holder() == heir
        assert heard() == [claims.said(heir, 7)]
    assert claims.release(FOURTH) == 1
    assert heard() == []
    assert claims.node.dump() == {}


def test_release_of_one_hold_of_several_hands_nothing_over(locks):
    locks.acquire(count=2)
    locks.queue(OTHER, mark=7)
    with locks.node.listening(WAKE[OTHER]) as subscription:
        assert locks.release(count=1) == 1
        assert locks.node.messages(subscription) == []
    assert locks.holds() == {ME: b"1"}


def test_release_still_tells_redissons_channel_before_it_tells_the_heir(locks):
    locks.acquire()
    locks.queue(OTHER, mark=7)
    with locks.node.listening(KEYS.channel, WAKE[OTHER]) as subscription:
        locks.release()
        assert locks.node.messages(subscription) == [(KEYS.channel, b"0"), locks.said(OTHER, 7)]


# Who is only woken.


def test_lock_is_not_handed_over_to_a_head_that_asked_without_a_mark(claims, heard, give_back):
    """Who is behind it would like to be handed the lock: it is not its turn."""
    claims.acquire()
    claims.queue(OTHER, waited=2_000, mark=0)
    claims.queue(THIRD, waited=1_000, mark=8)
    give_back()
    assert claims.holder() is None
    assert heard() == [claims.said(OTHER)]
    assert claims.waiters() == [OTHER, THIRD]


def test_head_that_asked_again_without_a_mark_is_only_woken(claims, heard):
    claims.acquire()
    claims.queue(OTHER, mark=7)
    claims.queue(OTHER, mark=0)
    claims.release()
    assert claims.holder() is None
    assert heard() == [claims.said(OTHER)]


def remember(claims, kind, age=0):
    """Write a birth record of that age, ms; none for None."""
    if kind is not None:
        claims.redis.set(BIRTH_KEY, f"{kind} {claims.now() - age} -")


@pytest.mark.parametrize(("kind", "age"), [(None, 0), ("newborn", 0), ("newborn", GUARD - SLACK), ("newborn", -60_000)])
def test_node_that_remembers_too_little_only_wakes_the_head(claims, heard, give_back, kind, age):
    claims.acquire()
    remember(claims, kind, age)
    claims.queue(OTHER, guard=GUARD, mark=7)
    give_back()
    assert claims.holder() is None, "a claim that it forgot may still be believed"
    assert heard() == [claims.said(OTHER)]
    assert claims.waiters() == [OTHER]


@pytest.mark.parametrize(("kind", "age"), [("original", 0), ("original", -60_000), ("newborn", GUARD + 1)])
def test_node_that_remembers_for_long_enough_hands_over(claims, heard, give_back, kind, age):
    claims.acquire()
    remember(claims, kind, age)
    claims.queue(OTHER, guard=GUARD, mark=7)
    give_back()
    assert claims.holder() == OTHER
    assert heard() == [claims.said(OTHER, 7)]


@pytest.mark.parametrize("kind", [None, "newborn"])
def test_node_hands_over_whatever_it_remembers_to_who_does_not_mind(claims, heard, give_back, kind):
    claims.acquire()
    remember(claims, kind)
    claims.queue(OTHER, guard=0, mark=7)
    give_back()
    assert claims.holder() == OTHER


def test_node_hands_over_by_the_guard_of_the_heir_and_nobody_elses(claims, heard):
    """Who is passed over wanted more of the node than the heir does."""
    claims.acquire()
    remember(claims, "newborn", GUARD)
    claims.queue(OTHER, waited=2_000, guard=10 * GUARD, mark=7)
    claims.queue(THIRD, waited=1_000, guard=GUARD, mark=8)
    claims.end_place(OTHER)
    claims.release()
    assert claims.holder() == THIRD
    assert heard() == [claims.said(THIRD, 8)]


def test_head_is_only_woken_where_the_claim_is_refused(claims, heard, give_back):
    """The release is done in any case; what the node is short of is told to who asks."""
    claims.acquire()
    claims.line_up(OTHER, THIRD, mark=7)
    with claims.node.refused_claims():
        assert give_back() == 1
        assert heard() == [claims.said(OTHER)]
    assert claims.holder() is None
    assert claims.waiters() == [OTHER, THIRD]


def test_head_is_told_once_and_the_truth_without_memory(claims, heard, give_back):
    """Whether the claim fits in the room of the one that was given back is the server's business."""
    claims.acquire()
    claims.line_up(OTHER, THIRD, mark=7)
    with claims.node.out_of_memory():
        assert give_back() == 1
        holder = claims.holder()
        assert heard() == [claims.said(OTHER, 7 if holder else 0)]
    assert holder in (OTHER, None)
    assert claims.left() > 0 or holder is None


# Who is dead.


def test_claim_of_an_heir_that_nobody_listens_for_is_taken_back(claims, give_back):
    claims.acquire()
    claims.line_up(OTHER, THIRD, mark=7)
    with claims.node.listening(WAKE[THIRD]) as subscription:
        give_back()
        assert claims.node.messages(subscription) == [claims.said(THIRD, 7)]
    assert claims.holder() == THIRD
    assert claims.waiters() == [THIRD]


def test_lock_is_free_when_the_dead_heir_is_followed_by_one_that_is_only_woken(claims, give_back):
    claims.acquire()
    claims.queue(OTHER, waited=2_000, mark=7)
    claims.queue(THIRD, waited=1_000, mark=0)
    with claims.node.listening(WAKE[THIRD]) as subscription:
        give_back()
        assert claims.node.messages(subscription) == [claims.said(THIRD)]
    assert claims.holder() is None
    assert claims.waiters() == [THIRD]


# Who leaves, and who does not.


def test_abandon_that_goes_on_waiting_hands_nothing_over(claims, heard):
    """It asks again in a moment, and whoever is woken or handed over to meanwhile would split the vote."""
    claims.acquire()
    claims.line_up(OTHER, THIRD, mark=7)
    assert claims.abandon(leave=False) == 1
    assert claims.holder() is None
    assert heard() == []
    assert claims.waiters() == [OTHER, THIRD]


def test_heir_that_drops_its_claim_and_goes_on_waiting_keeps_its_place(claims, heard):
    claims.acquire()
    claims.line_up(OTHER, THIRD, mark=7)
    claims.release()
    heard()
    assert claims.abandon(OTHER, leave=False) == 1
    assert claims.holder() is None
    assert heard() == []
    assert claims.waiters() == [OTHER, THIRD]


def test_heir_that_leaves_hands_over_to_the_next(claims, heard):
    """It gave up before it read that the lock is its own."""
    claims.acquire()
    claims.line_up(OTHER, THIRD, mark=7)
    claims.release()
    heard()
    assert claims.abandon(OTHER, leave=True) == 1
    assert claims.holder() == THIRD
    assert heard() == [claims.said(THIRD, 7)]
    assert claims.waiters() == [THIRD]


def test_waiter_that_leaves_a_held_lock_hands_nothing_over(claims, heard):
    claims.acquire()
    claims.line_up(OTHER, THIRD, mark=7)
    assert claims.abandon(OTHER, leave=True) == 0
    assert claims.holder() == ME
    assert heard() == []
    assert claims.waiters() == [THIRD]


@pytest.mark.parametrize("leaver", [OTHER, THIRD])
def test_waiter_that_leaves_a_free_lock_hands_it_over_to_the_head(claims, heard, leaver):
    """Its claim was dropped, or had expired: nobody else would tell those who wait."""
    claims.acquire()
    claims.line_up(OTHER, THIRD, FOURTH, mark=7)
    claims.abandon(leave=False)
    assert claims.abandon(leaver, leave=True) == 0
    heir = THIRD if leaver == OTHER else OTHER
    assert claims.holder() == heir
    assert heard() == [claims.said(heir, 7)]


# "Every command may arrive late, twice or not at all."


@pytest.mark.parametrize("call", ["release", "abandon"])
def test_repeated_end_of_a_claim_leaves_the_heirs_alone(claims, heard, call):
    claims.acquire()
    claims.line_up(OTHER, THIRD, mark=7)
    WAYS[call](claims)
    heard()
    before, left = claims.node.dump(), claims.left()
    assert WAYS[call](claims) == 0
    assert claims.node.dump() == before
    assert 0 < claims.left() <= left
    assert heard() == []


def test_late_abandon_of_the_former_holder_leaves_the_heirs_claim_alone(claims, heard):
    claims.acquire()
    claims.queue(OTHER, mark=7)
    claims.release()
    heard()
    for leave in (False, True):
        assert claims.abandon(ME, leave=leave) == 0
    assert claims.holder() == OTHER
    assert heard() == []


def test_former_holder_that_still_had_a_place_is_not_its_own_heir(claims, heard, give_back):
    """It may have been queueing here when the others granted, or have taken the lock over itself."""
    claims.acquire(OTHER)
    claims.line_up(ME, THIRD, mark=7)
    claims.release(OTHER)
    assert claims.holder() == ME
    heard()
    give_back()
    assert claims.holder() == THIRD
    assert heard() == [claims.said(THIRD, 7)]
    assert claims.waiters() == [THIRD]
