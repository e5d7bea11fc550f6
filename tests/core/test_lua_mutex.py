"""The mutex's scripts on a real server: called by hand, and all keys are looked at afterwards."""

import pytest
import redis

from redsync._core.keys import LockKeys

KEYS = LockKeys.of(b"redsync:", b"x")
ME, OTHER, THIRD, FOURTH = b"client-a:1", b"client-b:2", b"client-c:3", b"client-d:4"
WAKE = {owner: b"redsync:wake:" + owner.replace(b":", b"-") for owner in (ME, OTHER, THIRD, FOURTH)}
LEASE = 30_000
NEW, EXISTING, FOREIGN = 1, 2, 0
SLACK = 2_000
"""Milliseconds that a test on a busy machine may take."""

FOREIGN_TYPES = ["hash", "list", "set", "zset"]


# Acquire.


def test_acquire_leaves_what_the_redis_documentation_does(mutexes, lasts):
    """`SET key value NX PX lease`, as every other implementation of Redlock."""
    assert mutexes.acquire() == NEW
    assert mutexes.node.dump() == {KEYS.lock: ME}
    assert mutexes.redis.set(KEYS.lock, OTHER, nx=True, px=LEASE) is None
    assert lasts(mutexes.left(), LEASE)


def test_acquire_is_refused_by_what_another_implementation_left(mutexes, lasts):
    mutexes.redis.set(KEYS.lock, b"any value", nx=True, px=20_000)
    before = mutexes.node.dump()
    remaining, value = mutexes.acquire()
    assert lasts(remaining, 20_000)
    assert value == b"any value"
    assert mutexes.node.dump() == before


def test_acquire_of_what_is_ours_says_so(mutexes):
    """A repetition of one request: two requests never have the same value."""
    assert [mutexes.acquire() for _ in range(3)] == [NEW, EXISTING, EXISTING]
    assert mutexes.node.dump() == {KEYS.lock: ME}


def test_acquire_lengthens_what_is_ours_and_never_shortens_it(mutexes, lasts):
    mutexes.acquire(lease=10_000)
    mutexes.acquire(lease=60_000)
    assert lasts(mutexes.left(), 60_000)
    mutexes.acquire(lease=1_000)
    assert lasts(mutexes.left(), 60_000)


@pytest.mark.parametrize("count", [1, 2, 7])
def test_acquire_has_no_count(mutexes, count):
    assert mutexes.acquire(count=count) == NEW
    assert mutexes.node.dump() == {KEYS.lock: ME}


def test_acquire_tells_of_a_holder_without_an_end(mutexes):
    mutexes.put(OTHER)
    assert mutexes.acquire() == [-1, OTHER]


@pytest.mark.parametrize("kind", FOREIGN_TYPES)
@pytest.mark.parametrize("call", ["acquire", "queue"])
def test_acquire_leaves_foreign_values_alone(mutexes, write_foreign, kind, call):
    write_foreign(kind)
    before = mutexes.node.dump()
    assert getattr(mutexes, call)() == FOREIGN
    assert mutexes.node.dump() == before
    assert mutexes.left() == -1


@pytest.mark.parametrize("value", [b"", b"\0\r\n", b"\xff:1", b"%s:%d", b"*", b"1"])
def test_acquire_takes_any_value_as_it_is(mutexes, value):
    assert mutexes.acquire(value) == NEW
    assert mutexes.holder() == value
    assert mutexes.acquire(ME)[1] == value
    assert mutexes.renew((b"x", value, 1, LEASE)) == [2]
    assert mutexes.release(value) == 1
    assert mutexes.node.dump() == {}


def test_lock_and_mutex_of_one_name_exclude_each_other(locks, mutexes):
    locks.acquire(ME)
    assert mutexes.acquire(OTHER) == FOREIGN
    locks.release(ME)
    mutexes.acquire(OTHER)
    assert locks.acquire(ME) == FOREIGN
    assert mutexes.holder() == OTHER


# Release and abandon.


def test_release_is_compare_and_delete(mutexes):
    mutexes.acquire(OTHER)
    assert mutexes.release(ME) == 0
    assert mutexes.holder() == OTHER
    assert mutexes.release(OTHER) == 1
    assert mutexes.node.dump() == {}
    assert mutexes.release(OTHER) == 0


def test_release_tells_no_channel_of_redissons(mutexes):
    mutexes.acquire()
    with mutexes.node.listening(KEYS.channel) as subscription:
        assert mutexes.release() == 1
        assert mutexes.node.messages(subscription) == []


def test_release_by_who_does_not_hold_wakes_nobody(mutexes):
    mutexes.acquire(OTHER)
    mutexes.queue(THIRD)
    before = mutexes.node.dump()
    with mutexes.node.listening(WAKE[THIRD]) as subscription:
        assert mutexes.release(ME) == 0
        assert mutexes.node.messages(subscription) == []
    assert mutexes.node.dump() == before


@pytest.mark.parametrize("kind", FOREIGN_TYPES)
@pytest.mark.parametrize(
    "call", [lambda m: m.release(), lambda m: m.abandon(), lambda m: m.abandon(leave=True)], ids=range(3)
)
def test_release_and_abandon_leave_foreign_values_alone(mutexes, write_foreign, kind, call):
    write_foreign(kind)
    before = mutexes.node.dump()
    assert call(mutexes) == 0
    assert mutexes.node.dump() == before


def test_abandon_drops_our_claim_and_stays_in_the_queue(mutexes):
    mutexes.acquire(OTHER)
    mutexes.queue(ME)
    mutexes.queue(THIRD)
    mutexes.redis.delete(KEYS.lock)
    mutexes.acquire(ME)
    with mutexes.node.listening(*WAKE.values()) as subscription:
        assert mutexes.abandon(leave=False) == 1
        assert mutexes.node.messages(subscription) == [], "who goes on waiting has nothing to pass on"
    assert mutexes.holder() is None
    assert mutexes.waiters() == [ME, THIRD]


@pytest.mark.parametrize("leave", [False, True])
def test_abandon_never_drops_the_claim_of_another(mutexes, leave):
    mutexes.acquire(OTHER)
    mutexes.queue(ME)
    mutexes.queue(THIRD)
    with mutexes.node.listening(*WAKE.values()) as subscription:
        assert mutexes.abandon(leave=leave) == 0
        assert mutexes.node.messages(subscription) == [], "it is not free"
    assert mutexes.holder() == OTHER
    assert mutexes.waiters() == ([THIRD] if leave else [ME, THIRD])


def test_abandon_passes_on_a_wake_up_it_may_have_got(mutexes):
    """ME was woken by a release, but gave up before it read that: THIRD must not wait for ever."""
    mutexes.acquire(OTHER)
    mutexes.queue(ME, waited=1_000)
    mutexes.queue(THIRD)
    with mutexes.node.listening(*WAKE.values()) as subscription:
        mutexes.release(OTHER)
        assert mutexes.node.messages(subscription) == [mutexes.said(ME)]
        assert mutexes.abandon(ME, leave=True) == 0
        assert mutexes.node.messages(subscription) == [mutexes.said(THIRD)]


# Renew and force release.


def test_renew_is_compare_and_pexpire(mutexes, lasts):
    mutexes.acquire(lease=5_000)
    assert mutexes.renew((b"x", OTHER, 1, 60_000)) == [0]
    assert lasts(mutexes.left(), 5_000)
    assert mutexes.renew((b"x", ME, 1, 60_000)) == [2]
    assert lasts(mutexes.left(), 60_000)
    assert mutexes.renew((b"x", ME, 1, 1_000)) == [2]
    assert lasts(mutexes.left(), 60_000), "it never shortens"
    assert mutexes.holder() == ME


def test_renew_heals_a_claim_that_the_node_forgot(mutexes, lasts):
    assert mutexes.renew((b"x", ME, 1, LEASE)) == [1]
    assert mutexes.node.dump() == {KEYS.lock: ME}
    assert lasts(mutexes.left(), LEASE)
    assert mutexes.renew((b"x", ME, 1, LEASE)) == [2], "it counts from the next renewal on"


def test_renew_settles_many_mutexes_each_by_itself(mutexes, write_foreign, lasts):
    for name, owner in [(b"ours", ME), (b"theirs", OTHER), (b"also ours", THIRD)]:
        mutexes.acquire(owner, keys=LockKeys.of(b"redsync:", name), lease=5_000)
    write_foreign("list", b"redsync:foreign")
    claims = [
        (b"ours", ME, 1, 60_000),
        (b"foreign", ME, 1, 60_000),
        (b"free", FOURTH, 1, 50_000),
        (b"theirs", ME, 1, 60_000),
        (b"also ours", THIRD, 1, 40_000),
    ]
    assert mutexes.renew(*claims) == [2, -1, 1, 0, 2]
    assert mutexes.node.dump() == {
        b"redsync:also ours": THIRD,
        b"redsync:foreign": [b"a", b"b"],
        b"redsync:free": FOURTH,
        b"redsync:ours": ME,
        b"redsync:theirs": OTHER,
    }
    assert lasts(mutexes.left(b"redsync:ours"), 60_000)
    assert lasts(mutexes.left(b"redsync:free"), 50_000)
    assert lasts(mutexes.left(b"redsync:also ours"), 40_000)
    assert lasts(mutexes.left(b"redsync:theirs"), 5_000)


@pytest.mark.parametrize("owner", [ME, b"any value"])
def test_force_release_takes_it_from_whoever_has_it(mutexes, owner):
    mutexes.put(owner)
    assert mutexes.force_release(owner) == 1
    assert mutexes.node.dump() == {}
    assert mutexes.force_release(owner) == 0


@pytest.mark.parametrize("kind", FOREIGN_TYPES)
def test_force_release_of_a_mutex_leaves_other_types_alone(mutexes, write_foreign, kind):
    write_foreign(kind)
    before = mutexes.node.dump()
    assert mutexes.force_release() == -1
    assert mutexes.node.dump() == before


# Idempotency: "every command may arrive late, twice or not at all".

CALLS = {
    "acquire": lambda mutexes: mutexes.acquire(),
    "queue": lambda mutexes: mutexes.queue(),
    "release": lambda mutexes: mutexes.release(),
    "abandon": lambda mutexes: mutexes.abandon(),
    "abandon and leave": lambda mutexes: mutexes.abandon(leave=True),
    "renew": lambda mutexes: mutexes.renew((b"x", ME, 1, 60_000)),
    "force_release": lambda mutexes: mutexes.force_release(),
}


@pytest.mark.parametrize("situation", ["free", "ours", "theirs", "list"])
@pytest.mark.parametrize("call", CALLS)
def test_script_called_twice_leaves_the_state_of_once(mutexes, write_foreign, situation, call):
    if situation == "list":
        write_foreign("list")
    elif situation != "free":
        mutexes.acquire(ME if situation == "ours" else OTHER)
    CALLS[call](mutexes)
    once, left = mutexes.node.dump(), mutexes.left()
    CALLS[call](mutexes)
    twice = mutexes.node.dump()
    for state in (once, twice):
        # The instant at which a waiter asked is of course a later one.
        if KEYS.queue in state:
            ((waiter, _),) = state.pop(KEYS.queue)
            state[KEYS.queue] = waiter
            state[KEYS.places] = set(state[KEYS.places])
    assert twice == once
    assert (mutexes.left() < 0) == (left < 0)
    assert mutexes.left() == pytest.approx(left, abs=SLACK)


def test_late_acquire_followed_by_its_abandon_leaves_nothing(mutexes):
    mutexes.queue(ME)
    mutexes.abandon(ME, leave=True)
    mutexes.acquire(OTHER)
    mutexes.queue(ME)
    mutexes.abandon(ME, leave=True)
    mutexes.release(OTHER)
    assert mutexes.node.dump() == {}


# A node without memory.


def test_acquire_of_a_free_mutex_fails_without_memory_and_leaves_nothing(mutexes):
    for call in (mutexes.acquire, mutexes.queue):
        with mutexes.node.out_of_memory(), pytest.raises(redis.exceptions.ResponseError, match="maxmemory"):
            call()
    assert mutexes.node.dump() == {}


def test_what_is_there_is_refused_renewed_and_given_back_without_memory(mutexes, lasts):
    mutexes.acquire(lease=10_000)
    mutexes.queue(OTHER)
    with mutexes.node.listening(WAKE[OTHER]) as subscription, mutexes.node.out_of_memory():
        assert mutexes.acquire(OTHER)[1] == ME
        assert mutexes.renew((b"y", ME, 1, 60_000), (b"x", ME, 1, 60_000)) == [0, 2]
        assert lasts(mutexes.left(), 60_000)
        assert mutexes.inspect()[2] == [ME, b"1"]
        assert mutexes.release() == 1
        assert mutexes.node.messages(subscription) == [mutexes.said(OTHER)]
    assert mutexes.holder() is None
    assert mutexes.waiters() == [OTHER]
    mutexes.acquire()
    with mutexes.node.out_of_memory():
        assert mutexes.abandon(leave=True) == 1
    mutexes.acquire()
    with mutexes.node.out_of_memory():
        assert mutexes.force_release() == 1
    assert mutexes.node.dump() == {}
