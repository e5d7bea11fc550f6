"""Waiting for a lock on a real server: places in the queue, hand-overs and wake-ups."""

import pytest

from redsync._core.keys import LockKeys
from redsync._core.memory import BIRTH_KEY
from tests.core.conftest import (
    EARLIER,
    EXISTING,
    FOURTH,
    KEYS,
    LEASE,
    ME,
    NEW,
    NO_GUARD,
    OTHER,
    PLACE,
    SLACK,
    THIRD,
    waiter_of,
    wake_channel,
)

GUARD = 20_000
LATER = b"client-a:2"


@pytest.fixture(params=[0, 7])
def ask_id(request):
    """The ask id of the waiters' asks; 0: no hand-over."""
    return request.param


# Places by arrival.


@pytest.mark.parametrize("waited", [0, 12_345])
def test_refused_waiter_is_queued_in_the_same_step_by_its_arrival(claims, waited):
    claims.acquire(OTHER)
    before = claims.now()
    assert claims.queue(ME, ask_id=7, guard=60_000, waited=waited)[1] == OTHER
    after = claims.now()
    ((waiter, arrival),) = claims.redis.zrange(KEYS.queue, 0, -1, withscores=True)
    assert waiter == waiter_of(ME)
    assert before <= arrival + waited <= after
    expiry, ask_id, guard, channel = claims.place(ME)
    assert before + PLACE <= expiry <= after + PLACE
    assert (ask_id, guard, channel) == (7, 60_000, wake_channel(ME))


def test_queue_keys_expire_with_the_last_place(each, lasts):
    each.acquire(OTHER)
    for waiter, place, left in [(ME, PLACE, PLACE), (THIRD, 60_000, 60_000), (ME, 1_000, 60_000)]:
        each.queue(waiter, place=place)
        assert lasts(each.left(KEYS.queue), left)
        assert lasts(each.left(KEYS.places), left)


@pytest.mark.parametrize("held_before", [False, True])
def test_granted_waiter_leaves_the_queue_and_an_ask_without_a_place_does_not_touch_it(claims, held_before):
    claims.acquire(OTHER)
    claims.line_up(ME, THIRD)
    claims.acquire(FOURTH)
    claims.redis.delete(KEYS.lock)
    if held_before:
        claims.put(ME)
    else:
        assert claims.acquire(FOURTH) == NEW
        assert claims.waiters() == [ME, THIRD]
        claims.redis.delete(KEYS.lock)
    assert claims.queue(ME) == (EXISTING if held_before else NEW)
    assert claims.waiters() == [THIRD]


@pytest.mark.parametrize("found", ["another's", "none", "a repaired one"])
def test_release_leaves_the_queue_whatever_claim_it_finds(each, heard, found):
    """The others granted while this node was not asked, and then it may have been repaired. No owner must wake
    itself."""
    each.acquire(OTHER)
    each.line_up(ME, THIRD)
    if found != "another's":
        each.redis.delete(KEYS.lock)
    if found == "a repaired one":
        each.renew((b"x", ME, 1, LEASE))
    assert each.release(ME) == (found == "a repaired one")
    assert heard() == ([] if found == "another's" else [each.said(THIRD)])
    assert each.holder() == (OTHER if found == "another's" else None)
    assert each.waiters() == [THIRD]


@pytest.mark.parametrize(
    ("late", "reply"),
    [
        (lambda each: each.release(EARLIER), 0),
        (lambda each: each.abandon(EARLIER), 0),
        (lambda each: each.renew((b"x", EARLIER, 1, 60_000)), [0]),
    ],
    ids=["release", "rollback that keeps waiting", "renewal"],
)
def test_late_command_of_an_earlier_hold_touches_neither_a_later_one_nor_its_place(each, lasts, late, reply):
    """The command, here also an ask, comes over a connection that was given up."""
    each.acquire(count=2)
    assert late(each) == reply
    assert each.node.dump() == {KEYS.lock: each.value(ME, 2)}
    assert lasts(each.left(), LEASE)
    each.release()
    each.acquire(OTHER)
    each.line_up(THIRD, ME, ask_id=7)
    late(each)
    each.queue(EARLIER, waited=9_000, ask_id=3)
    assert each.waiters() == [THIRD, ME]
    assert each.place(ME)[1] == 7


# Hand-over, and for how long.


def test_lock_goes_down_the_queue_with_the_ask_ids(each, heard, ask_id):
    """By arrival at this node; a waiter that is only woken must ask."""
    each.acquire()
    order = [THIRD, OTHER, FOURTH]
    for waiter in order if each.noun == "fair_lock" else reversed(order):
        each.queue(waiter, waited=1_000 * (9 - order.index(waiter)), ask_id=ask_id)
    for holder, heir in zip([ME, *order], order, strict=False):
        before = each.waiters()
        assert each.release(holder) == 1
        assert heard() == [each.said(heir, ask_id)]
        assert each.holder() == (heir if ask_id else None)
        assert each.waiters() == [waiter for waiter in before if waiter != holder]
        assert ask_id or each.queue(heir) == NEW
    assert each.release(FOURTH) == 1
    assert heard() == []
    assert each.node.dump() == {}


@pytest.mark.parametrize(
    "case",
    [
        (PLACE, 0, 7, PLACE),
        (10 * LEASE, 0, 7, 10 * LEASE),
        (PLACE, 2_000, 7, 3_000),
        # However little is left of its place.
        (PLACE, 3_000, "7+500", 500),
        (PLACE, 3_000, "7+5000", 5_000),
        (PLACE, 3_000, "7+60000", 60_000),
    ],
    ids=str,
)
def test_new_holder_has_one_hold_for_as_long_as_its_place_or_the_lease_in_its_ask_id(each, heard, lasts, case):
    """It may have stopped. Then the lock is free when its place ends."""
    place, since, ask_id, left = case
    each.acquire(count=3)
    for ask in (6, ask_id):
        each.queue(OTHER, place=place, ask_id=ask)
    if since:
        each.end_place(OTHER, after=place - since)
    assert each.release() == 1
    assert each.node.dump()[KEYS.lock] == each.value(OTHER)
    assert lasts(each.left(), left, slack=min(left, SLACK))
    # An older script, which keeps the lock for less, repeats the whole id.
    assert heard() == [each.said(OTHER, 7)], "the number of its latest ask"
    assert each.waiters() == [OTHER], "it keeps its place until it releases the lock"
    remaining, holder = each.queue(FOURTH, ask_id=8)[:2]
    assert holder == OTHER
    assert lasts(remaining, left, slack=min(left, SLACK))


@pytest.mark.parametrize("by", ["asks", "renews"])
def test_new_holder_that_asks_or_renews_gets_its_lease(each, heard, lasts, by):
    each.acquire()
    each.queue(OTHER, ask_id=7)
    each.release()
    if by == "asks":
        assert each.queue(OTHER, ask_id=8) == EXISTING
        assert each.waiters() == ([OTHER] if each.noun == "fair_lock" else []), "as after any granted ask"
    else:
        assert each.renew((b"x", OTHER, 1, LEASE)) == [2]
    assert each.holder() == OTHER
    assert lasts(each.left(), LEASE)


# Nodes that forgot, or can't write.


REMEMBERING = [
    (GUARD, None, 0, False),
    (GUARD, "newborn", GUARD - SLACK, False),
    (GUARD, "newborn", -60_000, False),
    (GUARD, "newborn", GUARD + 1, True),
    (GUARD, "original", 0, True),
    (0, None, 0, True),
    (NO_GUARD, "blank", 0, True),
]
"""The guard, the record and its age, and whether the node remembers for long enough."""


def test_node_hands_over_only_if_it_remembers_for_long_enough(each, heard):
    """A claim that it forgot may still be believed."""
    for guard, kind, age, enough in REMEMBERING:
        each.redis.flushall()
        each.acquire()
        if kind is not None:
            each.redis.set(BIRTH_KEY, f"{kind} {each.now() - age} -")
        each.queue(OTHER, guard=guard, ask_id=7)
        each.release()
        assert each.holder() == (OTHER if enough else None), (guard, kind, age)
        assert heard() == [each.said(OTHER, 7 if enough else 0)], (guard, kind, age)
        assert each.waiters() == [OTHER]


def test_head_is_only_woken_where_the_claim_is_refused(each, heard):
    """The release succeeds in any case. The waiter that asks gets the node's error."""
    each.acquire()
    each.line_up(OTHER, THIRD, ask_id=7)
    with each.node.refused_claims():
        assert each.release() == 1
        assert heard() == [each.said(OTHER)]
    assert each.holder() is None
    assert each.waiters() == [OTHER, THIRD]


def test_head_gets_one_correct_message_without_memory(each, heard):
    """The server decides whether the claim fits in the room of the released one."""
    each.acquire()
    each.line_up(OTHER, THIRD, ask_id=7)
    with each.node.out_of_memory():
        assert each.release() == 1
        holder = each.holder()
        assert heard() == [each.said(OTHER, 7 if holder else 0)]
    assert holder in (OTHER, None)
    assert each.left() > 0 or holder is None


# Dead waiters.


@pytest.mark.parametrize("gone", ["its place has expired", "its entry is lost", "its client does not listen"])
def test_dead_waiter_is_skipped_and_has_nothing(each, ask_id, gone):
    each.acquire()
    each.line_up(OTHER, THIRD, ask_id=ask_id)
    if gone == "its place has expired":
        each.end_place(OTHER)
    elif gone == "its entry is lost":
        each.redis.hdel(KEYS.places, waiter_of(OTHER))
    listening = [THIRD] if gone == "its client does not listen" else [OTHER, THIRD]
    with each.node.listening(*map(wake_channel, listening)) as subscription:
        each.release()
        assert each.node.messages(subscription) == [each.said(THIRD, ask_id)]
    assert each.waiters() == [THIRD]
    assert each.holder() == (THIRD if ask_id else None)


def test_queue_of_dead_waiters_is_emptied(each, ask_id):
    each.acquire()
    each.line_up(OTHER, THIRD, FOURTH, ask_id=ask_id)
    each.release()
    assert each.node.dump() == {}, "the claims handed over to them are removed"


def test_wake_channel_and_names_with_blanks_are_kept_whole(each, ask_id):
    keys, owner, channel = LockKeys.of(b"redsync:", b"a  name \xff\n"), b"an  owner \r\n:1", b"odd  channel \r\n\xff"
    each.acquire(keys=keys)
    each.queue(owner, channel=channel, keys=keys, ask_id=ask_id)
    with each.node.listening(channel) as subscription:
        each.release(keys=keys)
        assert each.node.messages(subscription) == [(channel, each.said(owner, ask_id, keys)[1])]
    assert each.redis.exists(keys.lock) == bool(ask_id)


# Leaving, and staying.


@pytest.mark.parametrize("asked", [7, "7+5000"])
def test_rollback_that_keeps_waiting_gets_no_hand_over_before_it_asks_again(each, heard, asked):
    each.acquire(OTHER)
    each.queue(ME, ask_id=asked)
    each.abandon(ME)
    each.release(OTHER)
    assert heard() == [each.said(ME, 0)]
    assert each.holder() is None
    each.queue(LATER, ask_id=8)
    assert each.holder() == LATER


@pytest.mark.parametrize("leaver", [ME, OTHER, THIRD])
def test_waiter_that_leaves_a_free_lock_wakes_the_head(each, heard, ask_id, leaver):
    """It was woken, or got the lock, and gave up before it read that, or never was. Nothing else wakes the head."""
    each.acquire()
    each.line_up(*([ME] if leaver == ME else []), OTHER, THIRD, FOURTH, ask_id=ask_id)
    each.abandon()
    assert each.release(leaver) == 0
    assert each.holder() is None, "whether it is a lock or a mutex is not known any more"
    assert heard() == [each.said(THIRD if leaver == OTHER else OTHER)]


# "Every command may arrive late, twice or not at all."


def test_repeated_end_of_a_claim_does_not_touch_the_new_holders(each, heard, ask_id):
    each.acquire()
    each.line_up(OTHER, THIRD, ask_id=ask_id)
    each.release()
    heard()
    before, left = each.node.dump(), each.left()
    assert [each.release(), each.abandon()] == [0, 0]
    assert each.node.dump() == before
    assert 0 < each.left() <= left or not ask_id
    assert heard() == ([] if ask_id else [each.said(OTHER)]), "of a free lock, the next waiter is woken again"
