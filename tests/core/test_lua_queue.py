"""Queues and waking on a real server: what the scripts of lock and mutex have in common."""

import pytest

from redsync._core.keys import LockKeys

KEYS = LockKeys.of(b"redsync:", b"x")
ME, OTHER, THIRD, FOURTH = b"client-a:1", b"client-b:2", b"client-c:3", b"client-d:4"
WAKE = {owner: b"redsync:wake:" + owner.replace(b":", b"-") for owner in (ME, OTHER, THIRD, FOURTH)}
LEASE, PLACE = 30_000, 5_000
NEW, EXISTING, FOREIGN = 1, 2, 0
SLACK = 2_000
"""Milliseconds that a test on a busy machine may take."""


# The queue.


def test_refused_waiter_is_queued_in_the_same_step(claims):
    claims.acquire(OTHER)
    before = claims.now()
    assert claims.queue(ME)[1] == OTHER
    after = claims.now()
    ((waiter, arrival),) = claims.redis.zrange(KEYS.queue, 0, -1, withscores=True)
    assert waiter == ME
    assert before <= arrival <= after
    expiry, channel = claims.redis.hget(KEYS.places, ME).split(b" ", 1)
    assert before + PLACE <= int(expiry) <= after + PLACE
    assert channel == WAKE[ME]


def test_arrival_is_earlier_by_the_time_already_waited(claims):
    claims.acquire(OTHER)
    before = claims.now()
    claims.queue(ME, waited=12_345)
    assert before - 12_345 <= claims.redis.zscore(KEYS.queue, ME) <= claims.now() - 12_345


def test_waiter_that_asks_again_keeps_its_one_place(claims):
    claims.acquire(OTHER)
    claims.queue(ME, waited=60_000)
    first = claims.redis.zscore(KEYS.queue, ME)
    claims.queue(THIRD)
    claims.queue(ME, waited=int(claims.now() - first))
    assert claims.waiters() == [ME, THIRD]
    assert claims.redis.zscore(KEYS.queue, ME) == pytest.approx(first, abs=SLACK)


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
    assert set(claims.holds(KEYS.places)) == {THIRD}


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
    assert set(claims.holds(KEYS.places)) == {THIRD}


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
        assert wake_ups(claims.node, subscription) == [(WAKE[THIRD], THIRD + b" " + KEYS.lock)]
    assert claims.node.dump() == {}


def test_release_of_one_hold_of_several_keeps_the_place_of_who_has_no_claim(locks):
    """It is not the last: the others' holds go on, and so may the wait of who re-enters."""
    locks.acquire(OTHER)
    locks.queue(ME)
    assert locks.release(ME, 1) == 0
    assert locks.waiters() == [ME]


# Waking.


@pytest.fixture(params=["release", "force_release", "abandon"])
def free(request, claims):
    """Each way in which a lock that ME holds becomes free, and wakes."""
    return {
        "release": claims.release,
        "force_release": claims.force_release,
        "abandon": lambda: claims.abandon(leave=True),
    }[request.param]


def wake_ups(node, subscription):
    return [message for message in node.messages(subscription) if message[0] != KEYS.channel]


def test_waiter_is_woken_with_its_own_key(claims, free):
    claims.acquire()
    claims.queue(OTHER)
    with claims.node.listening(WAKE[OTHER]) as subscription:
        assert free() == 1
        assert claims.node.messages(subscription) == [(WAKE[OTHER], OTHER + b" " + KEYS.lock)]
    assert claims.node.dump() == {}, "a woken waiter's place is taken away"


def test_only_the_longest_waiter_is_woken(claims, free):
    claims.acquire()
    # THIRD asked this node last but has waited longest: the time already waited counts.
    claims.queue(OTHER, waited=1_000)
    claims.queue(FOURTH, waited=2_000)
    claims.queue(THIRD, waited=60_000)
    with claims.node.listening(*WAKE.values()) as subscription:
        free()
        assert claims.node.messages(subscription) == [(WAKE[THIRD], THIRD + b" " + KEYS.lock)]
    assert claims.waiters() == [FOURTH, OTHER]
    assert set(claims.holds(KEYS.places)) == {FOURTH, OTHER}


def test_waiters_are_woken_in_the_order_of_their_arrival(claims):
    claims.acquire()
    for waiter, waited in [(THIRD, 2_000), (FOURTH, 1_000), (OTHER, 3_000)]:
        claims.queue(waiter, waited=waited)
    woken = []
    with claims.node.listening(*WAKE.values()) as subscription:
        for holder in (ME, OTHER, THIRD, FOURTH):
            assert claims.release(holder) == 1
            woken += [channel for channel, _ in claims.node.messages(subscription)]
            following = woken[-1] if woken else None
            if following in WAKE.values() and len(woken) < 4:
                owner = next(owner for owner in WAKE if WAKE[owner] == following)
                claims.acquire(owner)
    assert woken == [WAKE[OTHER], WAKE[THIRD], WAKE[FOURTH]]


def test_expired_places_are_skipped_and_forgotten(claims, free):
    claims.acquire()
    claims.queue(OTHER, waited=9_000, place=PLACE)
    claims.queue(THIRD, waited=1_000, place=PLACE)
    expiry, channel = claims.redis.hget(KEYS.places, OTHER).split(b" ", 1)
    claims.redis.hset(KEYS.places, OTHER, b"%d %s" % (int(expiry) - PLACE - SLACK, channel))
    with claims.node.listening(*WAKE.values()) as subscription:
        free()
        assert claims.node.messages(subscription) == [(WAKE[THIRD], THIRD + b" " + KEYS.lock)]
    assert claims.node.dump() == {}


def test_place_that_lost_its_channel_is_skipped(claims, free):
    claims.acquire()
    claims.queue(OTHER, waited=9_000)
    claims.queue(THIRD)
    claims.redis.hdel(KEYS.places, OTHER)
    with claims.node.listening(*WAKE.values()) as subscription:
        free()
        assert claims.node.messages(subscription) == [(WAKE[THIRD], THIRD + b" " + KEYS.lock)]
    assert claims.node.dump() == {}


def test_waiters_whose_client_does_not_listen_are_skipped(claims, free):
    claims.acquire()
    claims.queue(OTHER, waited=9_000)
    claims.queue(THIRD, waited=8_000)
    claims.queue(FOURTH, waited=7_000)
    with claims.node.listening(WAKE[FOURTH]) as subscription:
        free()
        assert claims.node.messages(subscription) == [(WAKE[FOURTH], FOURTH + b" " + KEYS.lock)]
    assert claims.node.dump() == {}


def test_queue_of_dead_waiters_is_emptied(claims, free):
    claims.acquire()
    for waiter in (OTHER, THIRD, FOURTH):
        claims.queue(waiter)
    free()
    assert claims.node.dump() == {}


def test_wake_channel_with_blanks_is_kept_whole(claims):
    claims.acquire()
    claims.queue(OTHER, channel=b"odd  channel \r\n")
    with claims.node.listening(b"odd  channel \r\n") as subscription:
        claims.release()
        assert claims.node.messages(subscription) == [(b"odd  channel \r\n", OTHER + b" " + KEYS.lock)]
