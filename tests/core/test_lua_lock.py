"""The reentrant lock's scripts on a real server: called by hand, and all keys are looked at afterwards."""

import pytest
import redis

from redsync._core.keys import LockKeys

KEYS = LockKeys.of(b"redsync:", b"x")
ME, OTHER, THIRD, FOURTH = b"client-a:1", b"client-b:2", b"client-c:3", b"client-d:4"
WAKE = {owner: b"redsync:wake:" + owner.replace(b":", b"-") for owner in (ME, OTHER, THIRD, FOURTH)}
LEASE, PLACE = 30_000, 5_000
NEW, EXISTING, FOREIGN = 1, 2, 0
SLACK = 2_000
"""Milliseconds that a test on a busy machine may take."""


FOREIGN_TYPES = ["string", "list", "set", "zset"]


# Acquire.


def test_acquire_claims_a_free_lock_in_redissons_layout(locks, lasts):
    assert locks.acquire(count=3) == NEW
    assert locks.node.dump() == {KEYS.lock: {ME: b"3"}}
    assert lasts(locks.left(), LEASE)


def test_acquire_grants_what_is_ours_and_says_so(locks):
    locks.acquire()
    assert locks.acquire(count=2) == EXISTING
    assert locks.node.dump() == {KEYS.lock: {ME: b"2"}}


@pytest.mark.parametrize("count", [1, 2, 7])
def test_acquire_sets_the_count_and_never_adds(locks, count):
    assert [locks.acquire(count=count) for _ in range(3)] == [NEW, EXISTING, EXISTING]
    assert locks.holds() == {ME: b"%d" % count}
    assert locks.acquire(count=1) == EXISTING
    assert locks.holds() == {ME: b"1"}


def test_acquire_lengthens_the_lease_of_what_is_ours(locks, lasts):
    locks.acquire(lease=10_000)
    locks.acquire(lease=60_000)
    assert lasts(locks.left(), 60_000)


def test_acquire_never_shortens_the_lease_of_what_is_ours(locks, lasts):
    locks.acquire(lease=60_000)
    locks.acquire(count=2, lease=1_000)
    assert lasts(locks.left(), 60_000)


def test_acquire_puts_an_end_to_a_claim_that_had_none(locks, lasts):
    locks.redis.hset(KEYS.lock, ME, 1)
    assert locks.acquire() == EXISTING
    assert lasts(locks.left(), LEASE)


def test_acquire_refuses_what_another_owner_holds_and_tells_who_and_how_long(locks, lasts):
    locks.acquire(OTHER, lease=20_000)
    before = locks.node.dump()
    remaining, holder = locks.acquire(ME)
    assert lasts(remaining, 20_000)
    assert holder == OTHER
    assert locks.node.dump() == before


def test_acquire_tells_of_a_holder_without_an_end(locks):
    locks.redis.hset(KEYS.lock, OTHER, 1)
    assert locks.acquire(ME) == [-1, OTHER]


@pytest.mark.parametrize("kind", FOREIGN_TYPES)
@pytest.mark.parametrize("call", ["acquire", "queue"])
def test_acquire_leaves_foreign_values_alone(locks, kind, call, write_foreign):
    write_foreign(kind)
    before = locks.node.dump()
    assert getattr(locks, call)() == FOREIGN
    assert locks.node.dump() == before
    assert locks.left() == -1


@pytest.mark.parametrize("owner", [b"", b"\0\r\n", b"\xff:1", b"%s:%d", b"*"])
def test_acquire_takes_any_owner_as_it_is(locks, owner):
    assert locks.acquire(owner) == NEW
    assert locks.holds() == {owner: b"1"}
    assert locks.acquire(ME)[1] == owner
    assert locks.release(owner) == 1
    assert locks.node.dump() == {}


@pytest.mark.parametrize("name", [b"\r\n", b"\0", b"{}", b"{a}:b", b"*", b"\xff", b"y" * 512])
def test_scripts_work_with_any_name(locks, name):
    keys = LockKeys.of(b"redsync:", name)
    assert locks.acquire(keys=keys) == NEW
    assert locks.queue(OTHER, keys=keys)[1] == ME
    assert set(locks.node.dump()) == set(keys.all)
    assert locks.inspect(keys)[2:] == [[ME, b"1"], [b"client-b"]]
    assert locks.release(keys=keys) == 1
    assert locks.node.dump() == {}


# Release.


def test_release_to_a_count_keeps_the_claim_and_its_lease(locks, lasts):
    locks.acquire(count=3, lease=60_000)
    locks.queue(OTHER)
    with locks.node.listening(KEYS.channel, WAKE[OTHER]) as subscription:
        assert locks.release(count=2) == 1
        assert locks.node.messages(subscription) == []
    assert locks.holds() == {ME: b"2"}
    assert lasts(locks.left(), 60_000)
    assert locks.waiters() == [OTHER]


def test_release_sets_the_count_and_never_subtracts(locks):
    locks.acquire(count=3)
    assert [locks.release(count=1) for _ in range(3)] == [1, 1, 1]
    assert locks.holds() == {ME: b"1"}


def test_release_to_zero_deletes_and_tells_redissons_channel(locks):
    locks.acquire(count=3)
    with locks.node.listening(KEYS.channel) as subscription:
        assert locks.release() == 1
        assert locks.node.messages(subscription) == [(b"redisson_lock__channel:{redsync:x}", b"0")]
    assert locks.node.dump() == {}


@pytest.mark.parametrize("count", [0, 1])
def test_release_by_who_does_not_hold_changes_nothing(locks, count):
    locks.acquire(OTHER)
    locks.queue(THIRD)
    before = locks.node.dump()
    with locks.node.listening(KEYS.channel, WAKE[THIRD]) as subscription:
        assert locks.release(ME, count) == 0
        assert locks.node.messages(subscription) == []
    assert locks.node.dump() == before


@pytest.mark.parametrize("count", [0, 1])
def test_release_of_a_free_lock_changes_nothing(locks, count):
    with locks.node.listening(KEYS.channel) as subscription:
        assert locks.release(ME, count) == 0
        assert locks.node.messages(subscription) == []
    assert locks.node.dump() == {}


@pytest.mark.parametrize("kind", FOREIGN_TYPES)
@pytest.mark.parametrize("count", [0, 1])
def test_release_leaves_foreign_values_alone(locks, kind, count, write_foreign):
    write_foreign(kind)
    before = locks.node.dump()
    assert locks.release(count=count) == 0
    assert locks.node.dump() == before


# Abandon.


def test_abandon_drops_our_claim_and_stays_in_the_queue(locks):
    locks.acquire(OTHER)
    locks.queue(ME)
    locks.queue(THIRD)
    locks.redis.delete(KEYS.lock)
    locks.acquire(ME)
    with locks.node.listening(*WAKE.values(), KEYS.channel) as subscription:
        assert locks.abandon(leave=False) == 1
        assert locks.node.messages(subscription) == [], "who goes on waiting has nothing to pass on"
    assert locks.holds() == {}
    assert locks.waiters() == [ME, THIRD]


@pytest.mark.parametrize("leave", [False, True])
def test_abandon_never_drops_the_claim_of_another(locks, leave):
    locks.acquire(OTHER, count=2)
    locks.queue(ME)
    with locks.node.listening(*WAKE.values(), KEYS.channel) as subscription:
        assert locks.abandon(leave=leave) == 0
        assert locks.node.messages(subscription) == []
    assert locks.holds() == {OTHER: b"2"}
    assert locks.waiters() == ([] if leave else [ME])


def test_abandon_passes_on_a_wake_up_it_may_have_got(locks):
    """ME was woken by a release, but gave up before it read that: THIRD must not wait for ever."""
    locks.acquire(OTHER)
    locks.queue(ME, waited=1_000)
    locks.queue(THIRD)
    with locks.node.listening(*WAKE.values()) as subscription:
        locks.release(OTHER)
        assert locks.node.messages(subscription) == [locks.said(ME)]
        assert locks.abandon(ME, leave=True) == 0
        assert locks.node.messages(subscription) == [locks.said(THIRD)]


def test_abandon_wakes_nobody_while_another_holds(locks):
    locks.acquire(OTHER)
    locks.queue(ME)
    locks.queue(THIRD)
    with locks.node.listening(*WAKE.values()) as subscription:
        locks.abandon(ME, leave=True)
        assert locks.node.messages(subscription) == []
    assert locks.waiters() == [THIRD]


@pytest.mark.parametrize("kind", FOREIGN_TYPES)
@pytest.mark.parametrize("leave", [False, True])
def test_abandon_leaves_foreign_values_alone(locks, kind, leave, write_foreign):
    write_foreign(kind)
    before = locks.node.dump()
    assert locks.abandon(leave=leave) == 0
    assert locks.node.dump() == before


# Renew.


def test_renew_lengthens_what_is_ours(locks, lasts):
    locks.acquire(lease=5_000)
    assert locks.renew((b"x", ME, 1, 60_000)) == [2]
    assert lasts(locks.left(), 60_000)
    assert locks.renew((b"x", ME, 1, 1_000)) == [2]
    assert lasts(locks.left(), 60_000), "it never shortens"


def test_renew_repairs_a_count_that_a_node_missed(locks):
    locks.acquire(count=1)
    assert locks.renew((b"x", ME, 3, LEASE)) == [2]
    assert locks.holds() == {ME: b"3"}


def test_renew_heals_a_claim_that_the_node_forgot(locks, lasts):
    assert locks.renew((b"x", ME, 2, LEASE)) == [1]
    assert locks.node.dump() == {KEYS.lock: {ME: b"2"}}
    assert lasts(locks.left(), LEASE)
    assert locks.renew((b"x", ME, 2, LEASE)) == [2], "it counts from the next renewal on"


def test_renew_refuses_what_another_owner_holds(locks, lasts):
    locks.acquire(OTHER, count=2, lease=10_000)
    assert locks.renew((b"x", ME, 1, 60_000)) == [0]
    assert locks.holds() == {OTHER: b"2"}
    assert lasts(locks.left(), 10_000)


@pytest.mark.parametrize("kind", FOREIGN_TYPES)
def test_renew_leaves_foreign_values_alone(locks, kind, write_foreign):
    write_foreign(kind)
    before = locks.node.dump()
    assert locks.renew((b"x", ME, 1, LEASE)) == [-1]
    assert locks.node.dump() == before
    assert locks.left() == -1


def test_renew_settles_many_locks_each_by_itself(locks, lasts, write_foreign):
    for name, owner in [(b"ours", ME), (b"theirs", OTHER), (b"also ours", THIRD)]:
        locks.acquire(owner, keys=LockKeys.of(b"redsync:", name), lease=5_000)
    write_foreign("string", b"redsync:foreign")
    claims = [
        (b"ours", ME, 2, 60_000),
        (b"foreign", ME, 1, 60_000),
        (b"free", ME, 4, 50_000),
        (b"theirs", ME, 1, 60_000),
        (b"also ours", THIRD, 1, 40_000),
    ]
    assert locks.renew(*claims) == [2, -1, 1, 0, 2]
    assert locks.node.dump() == {
        b"redsync:also ours": {THIRD: b"1"},
        b"redsync:foreign": b"a lock of the Redlock page",
        b"redsync:free": {ME: b"4"},
        b"redsync:ours": {ME: b"2"},
        b"redsync:theirs": {OTHER: b"1"},
    }
    assert lasts(locks.left(b"redsync:ours"), 60_000)
    assert lasts(locks.left(b"redsync:free"), 50_000)
    assert lasts(locks.left(b"redsync:also ours"), 40_000)
    assert lasts(locks.left(b"redsync:theirs"), 5_000)


def test_renew_takes_as_many_claims_as_the_watchdog_sends(locks):
    claims = [(b"lock %d" % i, ME, 1, LEASE) for i in range(200)]
    assert locks.renew(*claims) == [1] * 200
    assert locks.renew(*claims) == [2] * 200


def test_renew_does_not_touch_the_queue(locks):
    locks.acquire()
    locks.queue(OTHER)
    before = locks.node.dump()
    locks.renew((b"x", ME, 1, 60_000))
    assert locks.node.dump() == before


# Force release.


def test_force_release_takes_the_lock_from_the_claim_that_it_names(locks):
    locks.acquire(OTHER, count=5)
    with locks.node.listening(KEYS.channel) as subscription:
        assert locks.force_release(OTHER) == 1
        assert locks.node.messages(subscription) == [(KEYS.channel, b"0")]
    assert locks.node.dump() == {}


def test_force_release_that_comes_late_takes_nothing_from_the_next_holder(locks):
    locks.acquire(OTHER)
    locks.queue(ME, mark=7)
    with locks.node.listening(WAKE[ME]):
        assert locks.force_release(OTHER) == 1
        assert locks.force_release(OTHER) == 0
        assert locks.holder() == ME


# A command of an earlier hold of the same owner that comes late, over a connection that was given up.

EARLIER = b"client-a:0"


@pytest.mark.parametrize(
    "late",
    [lambda locks: locks.release(EARLIER), lambda locks: locks.abandon(EARLIER, leave=True)],
    ids=["release", "undo"],
)
def test_late_command_of_an_earlier_hold_leaves_a_later_one_alone(locks, late):
    locks.acquire(count=2)
    assert late(locks) == 0
    assert locks.holds() == {ME: b"2"}


@pytest.mark.parametrize(
    "late",
    [
        lambda claims: claims.release(EARLIER),
        lambda claims: claims.abandon(EARLIER, leave=True),
        lambda claims: claims.abandon(EARLIER, leave=False),
        lambda claims: claims.queue(EARLIER, waited=9_000, mark=3),
    ],
    ids=["release", "undo", "undo that waits on", "ask"],
)
def test_late_command_of_an_earlier_hold_leaves_the_place_alone(queued_claims, late):
    queued_claims.acquire(OTHER)
    queued_claims.line_up(THIRD, ME, mark=7)
    late(queued_claims)
    assert queued_claims.waiters() == [THIRD, ME]
    assert queued_claims.place(ME)[1] == 7


def test_undo_that_waits_on_is_handed_nothing_before_it_asks_again(queued_claims):
    queued_claims.acquire(OTHER)
    queued_claims.queue(ME, mark=7)
    queued_claims.abandon(ME, leave=False)
    with queued_claims.node.listening(WAKE[ME]) as subscription:
        queued_claims.release(OTHER)
        assert queued_claims.node.messages(subscription) == [queued_claims.said(ME, 0)]
    assert queued_claims.holder() is None
    later = b"client-a:2"
    queued_claims.queue(later, mark=8)
    assert queued_claims.holder() == later


def test_late_renewal_of_an_earlier_hold_does_not_touch_a_later_one(locks):
    locks.acquire()
    assert locks.renew((b"x", EARLIER, 1, 60_000)) == [0]
    assert locks.holds() == {ME: b"1"}


def test_force_release_of_a_free_lock_changes_nothing(locks):
    with locks.node.listening(KEYS.channel) as subscription:
        assert locks.force_release() == 0
        assert locks.node.messages(subscription) == []


@pytest.mark.parametrize("kind", FOREIGN_TYPES)
def test_force_release_leaves_foreign_values_alone(locks, kind, write_foreign):
    write_foreign(kind)
    before = locks.node.dump()
    assert locks.force_release() == -1
    assert locks.node.dump() == before


# Idempotency: "every command may arrive late, twice or not at all".

SITUATIONS = ["free", "ours", "theirs", "string"]
CALLS = {
    "acquire": lambda locks: locks.acquire(count=2),
    "queue": lambda locks: locks.queue(count=2),
    "release": lambda locks: locks.release(),
    "release to 1": lambda locks: locks.release(count=1),
    "abandon": lambda locks: locks.abandon(),
    "abandon and leave": lambda locks: locks.abandon(leave=True),
    "renew": lambda locks: locks.renew((b"x", ME, 2, 60_000)),
    "force_release": lambda locks: locks.force_release(),
    "inspect": lambda locks: locks.inspect(),
}


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("call", CALLS)
def test_script_called_twice_leaves_the_state_of_once(locks, situation, call, write_foreign):
    """Without waiters: a repeated "leave" may wake one more of them, which is a hint and no state."""
    if situation == "string":
        write_foreign("string")
    elif situation != "free":
        locks.acquire(ME if situation == "ours" else OTHER)
    CALLS[call](locks)
    once, left = locks.node.dump(), locks.left()
    CALLS[call](locks)
    twice = locks.node.dump()
    for state in (once, twice):
        # The instant at which a waiter asked is of course a later one.
        if KEYS.queue in state:
            ((waiter, arrival),) = state.pop(KEYS.queue)
            assert locks.now() - SLACK < arrival <= locks.now()
            state[KEYS.queue] = waiter
            state[KEYS.places] = set(state[KEYS.places])
    assert twice == once
    assert (locks.left() < 0) == (left < 0)
    assert locks.left() == pytest.approx(left, abs=SLACK)


@pytest.mark.parametrize("call", ["release", "release to 1", "abandon", "force_release", "renew", "inspect"])
def test_script_called_twice_wakes_nobody_more_than_once(locks, call):
    locks.acquire(count=2)
    locks.queue(OTHER)
    locks.queue(THIRD)
    CALLS[call](locks)
    with locks.node.listening(*WAKE.values(), KEYS.channel) as subscription:
        waiters = locks.waiters()
        CALLS[call](locks)
        assert locks.node.messages(subscription) == []
    assert locks.waiters() == waiters


def test_late_acquire_followed_by_its_abandon_leaves_nothing(locks):
    locks.queue(ME)
    locks.abandon(ME, leave=True)
    locks.acquire(OTHER)
    locks.queue(ME)
    locks.abandon(ME, leave=True)
    locks.release(OTHER)
    assert locks.node.dump() == {}


# A node without memory.


def test_release_works_without_memory(locks):
    locks.acquire(count=2)
    locks.queue(OTHER)
    with locks.node.listening(WAKE[OTHER], KEYS.channel) as subscription, locks.node.out_of_memory():
        assert locks.release(count=1) == 1
        assert locks.release() == 1
        assert locks.node.messages(subscription) == [(KEYS.channel, b"0"), locks.said(OTHER)]
    assert locks.holder() is None
    assert locks.waiters() == [OTHER]


def test_acquire_of_a_free_lock_fails_without_memory_and_leaves_nothing(locks):
    for call in (locks.acquire, locks.queue):
        with locks.node.out_of_memory(), pytest.raises(redis.exceptions.ResponseError, match="maxmemory"):
            call()
    assert locks.node.dump() == {}


def test_acquire_of_what_others_hold_is_refused_without_memory(locks):
    locks.acquire(OTHER)
    with locks.node.out_of_memory():
        assert locks.acquire(ME)[1] == OTHER
    assert locks.holds() == {OTHER: b"1"}


def test_acquire_in_vain_leaves_no_half_place_without_memory(locks):
    locks.acquire(OTHER)
    before = locks.node.dump()
    with locks.node.out_of_memory(), pytest.raises(redis.exceptions.ResponseError, match="maxmemory"):
        locks.queue(ME)
    assert locks.node.dump() == before


def test_acquire_that_repeats_a_claim_works_without_memory(locks, lasts):
    """The reply to the first was lost: the second asks for the same count."""
    locks.acquire(lease=10_000)
    with locks.node.out_of_memory():
        assert locks.acquire(lease=60_000) == EXISTING
    assert lasts(locks.left(), 60_000)


def test_renew_of_existing_claims_works_without_memory(locks, lasts):
    locks.acquire(lease=10_000)
    with locks.node.out_of_memory():
        assert locks.renew((b"y", ME, 1, 60_000), (b"x", ME, 1, 60_000)) == [0, 2]
        assert locks.renew((b"x", ME, 2, 60_000)) == [2], "the lease matters, the count is repaired later"
    assert lasts(locks.left(), 60_000)
    assert set(locks.node.dump()) == {KEYS.lock}


def test_abandon_and_force_release_work_without_memory(locks):
    locks.acquire()
    locks.queue(OTHER)
    with locks.node.listening(WAKE[OTHER]) as subscription, locks.node.out_of_memory():
        assert locks.abandon(leave=True) == 1
        assert locks.node.messages(subscription) == [locks.said(OTHER)]
    locks.acquire()
    with locks.node.out_of_memory():
        assert locks.force_release() == 1
    assert locks.node.dump() == {}


def test_inspect_works_without_memory(locks):
    locks.acquire()
    with locks.node.out_of_memory():
        assert locks.inspect()[2] == [ME, b"1"]
