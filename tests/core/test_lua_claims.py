"""The scripts of all kinds of claim on a real server: common behaviour, called by hand, then all keys are read."""

import pytest
import redis

from redsync._core.keys import LockKeys
from tests.core.conftest import EXISTING, FOURTH, KEYS, LEASE, ME, NEW, OTHER, SLACK, THIRD, WRONG_TYPE, waiter_of
from tests.support.trouble import read_only

# Acquire.


@pytest.mark.parametrize("count", [1, 2, 7])
def test_acquire_claims_a_free_lock_and_sets_the_count_and_never_adds(each, lasts, count):
    """In the layout of Redisson, or of the Redis documentation."""
    assert [each.acquire(count=count) for _ in range(3)] == [NEW, EXISTING, EXISTING]
    assert each.node.dump() == {KEYS.lock: each.value(ME, count)}
    assert lasts(each.left(), LEASE)
    for lease, left in [(60_000, 60_000), (1_000, 60_000)]:
        assert each.acquire(count=1, lease=lease) == EXISTING
        assert each.node.dump() == {KEYS.lock: each.value()}
        assert lasts(each.left(), left), "it is lengthened and never shortened"
    each.redis.persist(KEYS.lock)
    assert each.acquire(OTHER)[:2] == [-1, ME]
    assert each.acquire(count=1) == EXISTING
    assert lasts(each.left(), LEASE)


@pytest.mark.parametrize("name", [b"\r\n", b"\0", b"{}", b"{a}:b", b"*", b"\xff", b"%s:%d", b"y" * 512])
def test_scripts_work_with_any_name_and_owner(each, name):
    keys, owner = LockKeys.of(b"redsync:", name), name + b":1"
    assert each.acquire(owner, keys=keys) == NEW
    assert each.queue(OTHER, keys=keys)[1] == owner
    assert set(each.node.dump()) == set(keys.all)
    _, holders, _, waiters, *_ = each.inspect(keys)
    assert ([words[:2] for words in holders], waiters) == ([[owner, 1]], [[b"client-b", b""]])
    assert each.renew((name, owner, 1, LEASE)) == [2]
    assert each.release(owner, keys=keys) == 1
    assert each.node.dump() == {}


# Every command may find a value of another type, and may arrive late, twice or not at all.

CALLS = {
    "acquire": (lambda each: each.acquire(count=2), WRONG_TYPE),
    "queue": (lambda each: each.queue(count=2), WRONG_TYPE),
    "release": (lambda each: each.release(), 0),
    "release to 1": (lambda each: each.release(count=1), 0),
    "roll back": (lambda each: each.abandon(), 0),
    "renew": (lambda each: each.renew((b"x", ME, 2, 60_000)), [-1]),
}


@pytest.mark.parametrize("call", CALLS)
def test_scripts_leave_foreign_values_alone(each, write_foreign, call):
    run, reply = CALLS[call]
    for kind in {"string", "hash", "list", "set", "zset"} - {each.value_type}:
        each.redis.delete(KEYS.lock)
        write_foreign(kind)
        before = each.node.dump()
        assert run(each) == reply, kind
        assert each.node.dump() == before
        assert each.left() == -1


@pytest.mark.parametrize("situation", ["free", "ours", "theirs"])
@pytest.mark.parametrize("call", CALLS)
def test_script_called_twice_leaves_the_same_state_as_once(each, situation, call):
    """Without waiters: a repeated "leave" may wake one more of them, which is only a hint."""
    if situation != "free":
        each.acquire(ME if situation == "ours" else OTHER)
    run, _ = CALLS[call]
    run(each)
    once, left = each.node.dump(), each.left()
    run(each)
    twice = each.node.dump()
    for state in (once, twice):
        # A second ask is later, of course, so the arrival may differ.
        if KEYS.queue in state:
            ((waiter, _),) = state.pop(KEYS.queue)
            state[KEYS.queue] = waiter
            state[KEYS.places] = set(state[KEYS.places])
    assert twice == once
    assert (each.left() < 0) == (left < 0)
    assert each.left() == pytest.approx(left, abs=SLACK)


# Renew.


def test_renew_decides_on_each_of_many_claims_by_itself(claims, lasts, write_foreign):
    for name, owner in [(b"ours", ME), (b"theirs", OTHER), (b"also ours", THIRD)]:
        claims.acquire(owner, keys=LockKeys.of(b"redsync:", name), lease=5_000)
    write_foreign("list", b"redsync:foreign")
    asked = [
        (b"ours", ME, 2, 60_000),
        (b"foreign", ME, 1, 60_000),
        (b"free", FOURTH, 4, 50_000),
        (b"theirs", ME, 1, 60_000),
        (b"also ours", THIRD, 1, 40_000),
    ]
    assert claims.renew(*asked) == [2, -1, 1, 0, 2], "a repaired claim counts from the next renewal on"
    assert claims.node.dump() == {
        b"redsync:also ours": claims.value(THIRD),
        b"redsync:foreign": [b"a", b"b"],
        b"redsync:free": claims.value(FOURTH, 4),
        b"redsync:ours": claims.value(ME, 2),
        b"redsync:theirs": claims.value(OTHER),
    }
    left = {b"ours": 60_000, b"free": 50_000, b"also ours": 40_000, b"theirs": 5_000}
    assert all(lasts(claims.left(b"redsync:" + name), wanted) for name, wanted in left.items())


@pytest.mark.parametrize("holder", [ME, OTHER, None])
def test_release_that_a_node_refuses_is_an_error_and_no_refusal(claims, holder):
    """The client must send it again, and must not take the claim for gone: a late ask may still make it."""
    if holder:
        claims.acquire(holder)
    if holder == ME:
        # The place of a later claim of this owner stays, so the release writes nothing else.
        claims.redis.hset(KEYS.places, waiter_of(ME), b"99999999999999 999 0 0 channel")
    with read_only([claims.redis]), pytest.raises(redis.exceptions.RedisError, match="read only replica"):
        claims.release()
    assert [claims.release(), claims.release()] == [holder == ME, 0]


def test_release_of_a_claim_of_another_library_removes_that_claim_only(each):
    """A forced release names the claim that it saw, whatever it looks like."""
    each.put(b"any value")
    assert [each.release(OTHER), each.release(b"any value"), each.release(b"any value")] == [0, 1, 0]
    assert each.node.dump() == {}


# A node without memory.


@pytest.mark.parametrize("is_free", [True, False])
def test_acquire_fails_without_memory_and_leaves_no_half_place(each, is_free):
    if not is_free:
        each.acquire(OTHER)
    before = each.node.dump()
    for call in [each.acquire, each.queue] if is_free else [each.queue]:
        with each.node.out_of_memory(), pytest.raises(redis.exceptions.ResponseError, match="maxmemory"):
            call()
    assert each.node.dump() == before


def test_existing_claim_is_refused_repeated_renewed_and_reported_without_memory(each, lasts):
    each.acquire(lease=10_000)
    with each.node.out_of_memory():
        assert each.acquire(OTHER)[1] == ME
        assert each.acquire(lease=20_000) == EXISTING, "the reply to the first was lost: it asks for the same count"
        assert lasts(each.left(), 20_000)
        assert each.renew((b"y", ME, 1, 60_000), (b"x", ME, 1, 60_000)) == [0, 2]
        assert each.renew((b"x", ME, 2, 60_000)) == [2], "the lease matters; the count is repaired later"
        assert each.inspect()[1][0][0] == ME
    assert lasts(each.left(), 60_000)
    assert set(each.node.dump()) == {KEYS.lock}
