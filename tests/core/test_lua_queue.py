"""Queues and waking on a real server: what the scripts of all kinds of claims have in common."""

import pytest

from redsync._core.keys import LockKeys

KEYS = LockKeys.of(b"redsync:", b"x")
ME, OTHER, THIRD, FOURTH = b"client-a:1", b"client-b:2", b"client-c:3", b"client-d:4"
WAKE = {owner: b"redsync:wake:" + owner.replace(b":", b"-") for owner in (ME, OTHER, THIRD, FOURTH)}
LEASE, PLACE = 30_000, 5_000
NEW, EXISTING, FOREIGN = 1, 2, 0
SLACK = 2_000
"""Milliseconds that a test on a busy machine may take."""
WAITER, LOST = b"client-a", b"client-b"
"""The owners of ME and OTHER, as queues have them."""


# The queue.


def test_refused_waiter_is_queued_in_the_same_step(claims):
    claims.acquire(OTHER)
    before = claims.now()
    assert claims.queue(ME, mark=7, guard=60_000)[1] == OTHER
    after = claims.now()
    ((waiter, arrival),) = claims.redis.zrange(KEYS.queue, 0, -1, withscores=True)
    assert waiter == WAITER
    assert before <= arrival <= after
    expiry, mark, guard, channel = claims.place(ME)
    assert before + PLACE <= expiry <= after + PLACE
    assert (mark, guard, channel) == (7, 60_000, WAKE[ME])


def test_arrival_is_earlier_by_the_time_already_waited(claims):
    claims.acquire(OTHER)
    before = claims.now()
    claims.queue(ME, waited=12_345)
    assert before - 12_345 <= claims.redis.zscore(KEYS.queue, WAITER) <= claims.now() - 12_345


def test_waiter_that_asks_again_keeps_its_one_place(claims):
    claims.acquire(OTHER)
    claims.queue(ME, waited=60_000, mark=1)
    first = claims.redis.zscore(KEYS.queue, WAITER)
    claims.queue(THIRD)
    claims.queue(ME, waited=int(claims.now() - first), mark=2)
    assert claims.waiters() == [ME, THIRD]
    assert claims.redis.zscore(KEYS.queue, WAITER) == pytest.approx(first, abs=SLACK)
    assert claims.place(ME)[1] == 2, "what is handed over later was asked for with this mark"


def test_queue_keys_expire_with_the_last_place(claims, lasts):
    claims.acquire(OTHER)
    claims.queue(ME)
    assert lasts(claims.left(KEYS.queue), PLACE)
    assert lasts(claims.left(KEYS.places), PLACE)
    claims.queue(THIRD, place=60_000)
    claims.queue(ME, place=1_000)
    assert lasts(claims.left(KEYS.queue), 60_000)
    assert lasts(claims.left(KEYS.places), 60_000)


@pytest.mark.parametrize("held_before", [False, True])
def test_granted_waiter_leaves_the_queue(claims, held_before):
    claims.acquire(OTHER)
    claims.queue(ME)
    claims.queue(THIRD)
    claims.redis.delete(KEYS.lock)
    if held_before:
        claims.put(ME)
    assert claims.queue(ME) == (EXISTING if held_before else NEW)
    assert claims.waiters() == [THIRD]


def test_acquire_without_a_place_leaves_the_queue_alone(claims):
    claims.acquire(OTHER)
    claims.queue(ME)
    claims.acquire(THIRD)
    assert claims.waiters() == [ME]
    claims.redis.delete(KEYS.lock)
    assert claims.acquire(THIRD) == NEW
    assert claims.waiters() == [ME]


def test_last_release_that_finds_a_claim_of_another_still_leaves_the_queue(claims):
    """The others granted while this node was not asked: the place would be left, and get a wake-up in vain."""
    claims.acquire(OTHER)
    claims.queue(ME)
    claims.queue(THIRD)
    assert claims.release(ME, 0) == 0
    assert claims.holder() == OTHER
    assert claims.waiters() == [THIRD]


def test_last_release_that_finds_no_claim_still_leaves_the_queue(claims):
    claims.acquire(OTHER)
    claims.queue(ME)
    claims.redis.delete(KEYS.lock)
    assert claims.release(ME, 0) == 0
    assert claims.node.dump() == {}


def test_last_release_leaves_the_queue_where_a_renewal_made_the_claim_and_wakes_another(claims):
    """The others granted while this node was not asked, and then it was healed: nobody is to wake itself."""
    claims.acquire(OTHER)
    claims.queue(ME, waited=60_000)
    claims.queue(THIRD)
    claims.redis.delete(KEYS.lock)
    claims.renew((b"x", ME, 1, LEASE))
    with claims.node.listening(*WAKE.values()) as subscription:
        assert claims.release(ME, 0) == 1
        assert claims.node.messages(subscription) == [claims.said(THIRD)]
    assert claims.waiters() == [THIRD]
    assert claims.holder() is None


def test_release_of_one_hold_of_several_keeps_the_place_of_who_has_no_claim(locks):
    """It is not the last: the others' holds go on, and so may the wait of who re-enters."""
    locks.acquire(OTHER)
    locks.queue(ME)
    assert locks.release(ME, 1) == 0
    assert locks.waiters() == [ME]


# Waking: what becomes of those whom the lock must not be handed over to, and who is passed over whatever they want.


@pytest.fixture(params=["release", "force_release", "abandon"])
def free(request, queued_claims):
    """Each way in which a lock that ME holds becomes free, and wakes."""
    return {
        "release": queued_claims.release,
        "force_release": queued_claims.force_release,
        "abandon": lambda: queued_claims.abandon(leave=True),
    }[request.param]


@pytest.fixture(params=[0, 7])
def mark(request):
    """Whether the lock may be handed over to those who wait: 0, no."""
    return request.param


def test_only_the_head_is_woken_with_its_own_key_and_keeps_its_place(queued_claims, free):
    queued_claims.acquire()
    queued_claims.line_up(THIRD, FOURTH, OTHER)
    with queued_claims.node.listening(*WAKE.values()) as subscription:
        assert free() == 1
        assert queued_claims.node.messages(subscription) == [queued_claims.said(THIRD)]
    assert queued_claims.holder() is None, "it must ask"
    assert queued_claims.waiters() == [THIRD, FOURTH, OTHER]


def test_longest_waiter_is_woken_whoever_asked_this_node_first(claims):
    claims.acquire()
    claims.queue(OTHER, waited=1_000)
    claims.queue(FOURTH, waited=2_000)
    claims.queue(THIRD, waited=60_000)
    with claims.node.listening(*WAKE.values()) as subscription:
        claims.release()
        assert claims.node.messages(subscription) == [claims.said(THIRD)]


def test_waiters_are_woken_in_the_order_of_the_queue(queued_claims):
    queued_claims.acquire()
    queued_claims.line_up(OTHER, THIRD, FOURTH)
    with queued_claims.node.listening(*WAKE.values()) as subscription:
        for holder, heir in [(ME, OTHER), (OTHER, THIRD), (THIRD, FOURTH)]:
            assert queued_claims.release(holder) == 1
            assert queued_claims.node.messages(subscription) == [queued_claims.said(heir)]
            assert queued_claims.queue(heir) == NEW
        assert queued_claims.release(FOURTH) == 1
        assert queued_claims.node.messages(subscription) == []
    assert queued_claims.node.dump() == {}


def test_woken_waiter_is_overtaken_by_a_newcomer_and_woken_again(claims):
    """It was only told that the lock is free; its place is still the first."""
    claims.acquire()
    claims.line_up(OTHER, THIRD)
    with claims.node.listening(*WAKE.values()) as subscription:
        claims.release()
        assert claims.acquire(FOURTH) == NEW
        claims.release(FOURTH)
        assert claims.node.messages(subscription) == [claims.said(OTHER)] * 2


def test_expired_places_are_skipped_and_forgotten(queued_claims, free, mark):
    queued_claims.acquire()
    queued_claims.line_up(OTHER, THIRD, mark=mark)
    queued_claims.end_place(OTHER)
    with queued_claims.node.listening(*WAKE.values()) as subscription:
        free()
        assert queued_claims.node.messages(subscription) == [queued_claims.said(THIRD, mark)]
    assert queued_claims.waiters() == [THIRD]
    assert queued_claims.holder() == (THIRD if mark else None)


def test_place_that_lost_its_entry_is_skipped(queued_claims, free, mark):
    queued_claims.acquire()
    queued_claims.line_up(OTHER, THIRD, mark=mark)
    queued_claims.redis.hdel(KEYS.places, LOST)
    with queued_claims.node.listening(*WAKE.values()) as subscription:
        free()
        assert queued_claims.node.messages(subscription) == [queued_claims.said(THIRD, mark)]
    assert queued_claims.waiters() == [THIRD]
    assert queued_claims.holder() == (THIRD if mark else None)


def test_waiters_whose_client_does_not_listen_are_skipped(queued_claims, free, mark):
    queued_claims.acquire()
    queued_claims.line_up(OTHER, THIRD, FOURTH, mark=mark)
    with queued_claims.node.listening(WAKE[FOURTH]) as subscription:
        free()
        assert queued_claims.node.messages(subscription) == [queued_claims.said(FOURTH, mark)]
    assert queued_claims.waiters() == [FOURTH]
    assert queued_claims.holder() == (FOURTH if mark else None)


def test_queue_of_dead_waiters_is_emptied(queued_claims, free, mark):
    queued_claims.acquire()
    queued_claims.line_up(OTHER, THIRD, FOURTH, mark=mark)
    free()
    assert queued_claims.node.dump() == {}, "what was handed over to them is taken back"


def test_wake_channel_and_names_with_blanks_are_kept_whole(queued_claims, mark):
    keys, owner, channel = LockKeys.of(b"redsync:", b"a  name \xff\n"), b"an  owner \r\n:1", b"odd  channel \r\n\xff"
    queued_claims.acquire(keys=keys)
    queued_claims.queue(owner, channel=channel, keys=keys, mark=mark)
    with queued_claims.node.listening(channel) as subscription:
        queued_claims.release(keys=keys)
        assert queued_claims.node.messages(subscription) == [(channel, queued_claims.said(owner, mark, keys)[1])]
    assert queued_claims.redis.exists(keys.lock) == bool(mark)
