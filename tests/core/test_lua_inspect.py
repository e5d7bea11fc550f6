"""Inspecting a lock or mutex on a real server."""

import pytest

from redsync._core.keys import LockKeys, client_key

KEYS = LockKeys.of(b"redsync:", b"x")
ME, OTHER, THIRD = b"client-a:1", b"client-b:2", b"client-c:3"
SLACK = 2_000
"""Milliseconds that a test on a busy machine may take."""


CLIENT = "285475da-9152-4c83-822a-67ee2f116a79"


def test_inspect_lists_the_holder_and_the_waiters(locks, lasts):
    locks.acquire(count=3, lease=20_000)
    locks.queue(OTHER)
    locks.queue(THIRD, waited=500 + SLACK)
    kind, remaining, holder, waiters = locks.inspect()
    assert kind == b"hash"
    assert lasts(remaining, 20_000)
    assert holder == [ME, b"3"]
    assert waiters == [b"client-c", b"client-b"]


def test_inspect_of_a_free_lock_is_empty(locks):
    assert locks.inspect() == [b"none", -2, [], []]


def test_inspect_reports_a_claim_without_expiry(locks):
    locks.redis.hset(KEYS.lock, ME, 1)
    assert locks.inspect() == [b"hash", -1, [ME, b"1"], []]


@pytest.mark.parametrize("kind", ["list", "set", "zset"])
def test_inspect_names_a_foreign_type(locks, kind, write_foreign):
    write_foreign(kind)
    assert locks.inspect() == [kind.encode(), -1, [], []]


def test_inspect_reports_the_owner_of_a_mutex(mutexes, lasts):
    mutexes.acquire(lease=20_000)
    mutexes.queue(OTHER)
    kind, remaining, holder, waiters = mutexes.inspect()
    assert kind == b"string"
    assert lasts(remaining, 20_000)
    assert (holder, waiters) == ([ME, b"1"], [b"client-b"])


def test_inspect_takes_a_foreign_string_for_a_mutex_of_its_writer(mutexes):
    """Such as those of redlock-py: nothing distinguishes them from other strings."""
    mutexes.put(b"\0any value\xff")
    assert mutexes.inspect() == [b"string", -1, [b"\0any value\xff", b"1"], []]


# The client behind the holder.


def announce(claims, client=CLIENT):
    claims.node.run("client_announce", (client_key(client),), b"a record", 65_000)


def test_inspect_shows_the_record_of_the_holders_client(claims):
    owner = f"{CLIENT}:7:1".encode()
    claims.acquire(owner)
    assert len(claims.inspect()) == 4, "nothing is known yet"
    announce(claims)
    assert claims.inspect()[4:] == [b"a record"]
    assert claims.inspect()[2] == [owner, b"1"]


def test_inspect_shows_no_record_of_another_client(claims):
    claims.acquire(f"{CLIENT}:7:1".encode())
    announce(claims, CLIENT.replace("2", "3"))
    assert len(claims.inspect()) == 4


@pytest.mark.parametrize(
    "owner", [b"any value", b"", b":7", f"{CLIENT}:".encode(), f"{CLIENT}:7:x".encode(), f" {CLIENT}:7:1".encode()]
)
def test_inspect_looks_for_no_record_of_a_foreign_claim(claims, owner):
    claims.put(owner)
    announce(claims, "")
    announce(claims)
    assert len(claims.inspect()) == 4


def test_inspect_ignores_a_record_of_another_type(claims):
    claims.acquire(f"{CLIENT}:7:1".encode())
    claims.redis.rpush(client_key(CLIENT), "a record")
    assert len(claims.inspect()) == 4


def test_inspect_lists_the_100_waiters_that_have_waited_longest(locks):
    locks.acquire()
    locks.redis.zadd(KEYS.queue, {b"waiter %03d" % i: i for i in range(150)})
    assert locks.inspect()[3] == [b"waiter %03d" % i for i in range(100)]


def test_inspect_changes_nothing(locks, lasts):
    locks.acquire(lease=20_000)
    locks.queue(OTHER)
    before = locks.node.dump()
    locks.inspect()
    assert locks.node.dump() == before
    assert lasts(locks.left(), 20_000)
