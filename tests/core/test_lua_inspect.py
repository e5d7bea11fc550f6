"""Inspecting a lock or mutex on a real server."""

import pytest

from redsync._core.keys import LockKeys, client_key
from redsync._core.permits import SlotKeys

KEYS = LockKeys.of(b"redsync:", b"x")
ME, OTHER, THIRD = b"client-a:1", b"client-b:2", b"client-c:3"
SLACK = 2_000
"""Milliseconds that a test on a busy machine may take."""


CLIENT = "285475da-9152-4c83-822a-67ee2f116a79"


def holders(claims):
    """Return the kind of the name, and the claims there: claim, count, mode, remaining ms, record."""
    return claims.inspect()[:2]


def test_inspect_reports_a_claim_without_expiry(locks):
    locks.redis.hset(KEYS.lock, ME, 1)
    assert holders(locks) == [b"lock", [[ME, 1, b"", -1, b""]]]


@pytest.mark.parametrize("value", [b"\0any value\xff", b"x" * 1000])
def test_inspect_takes_a_foreign_string_for_a_mutex_of_its_writer(mutexes, value):
    """Such as those of redlock-py: nothing distinguishes them from other strings."""
    mutexes.put(value)
    assert holders(mutexes) == [b"mutex", [[value, 1, b"", -1, b""]]]


# The client behind the holder.


def announce(claims, client=CLIENT):
    claims.node.run("client_announce", (client_key(client),), b"a record", 65_000)


def record(claims):
    return holders(claims)[1][0][4]


def test_inspect_shows_the_record_of_the_holders_client(claims):
    owner = f"{CLIENT}:7:1".encode()
    claims.acquire(owner)
    assert record(claims) == b"", "nothing is known yet"
    announce(claims)
    assert record(claims) == b"a record"
    assert holders(claims)[1][0][0] == owner


def test_inspect_shows_no_record_of_another_client(claims):
    claims.acquire(f"{CLIENT}:7:1".encode())
    announce(claims, CLIENT.replace("2", "3"))
    assert record(claims) == b""


@pytest.mark.parametrize("owner", [b"any value", b"", b":7", f"{CLIENT}:".encode(), f" {CLIENT}:7:1".encode()])
def test_inspect_looks_for_no_record_of_a_foreign_claim(claims, owner):
    claims.put(owner)
    announce(claims, "")
    announce(claims)
    assert record(claims) == b""


def test_inspect_ignores_a_record_of_another_type(claims):
    claims.acquire(f"{CLIENT}:7:1".encode())
    claims.redis.rpush(client_key(CLIENT), "a record")
    assert record(claims) == b""


def test_inspect_lists_the_waiters_that_have_waited_longest(locks):
    locks.acquire()
    for i in range(150):
        locks.queue(b"client-%03d:1" % i, waited=150_000 - 1000 * i)
    _, _, _, waiters, waiting, *_ = locks.inspect()
    assert ([owner for owner, _ in waiters], waiting) == ([b"client-%03d" % i for i in range(100)], 150)


def test_inspect_for_holders_alone_counts_no_waiters_and_reads_no_records(locks):
    locks.acquire(f"{CLIENT}:7:1".encode())
    announce(locks)
    locks.queue(OTHER)
    _, [[*_, record]], _, waiters, waiting, *_ = locks.node.run("name_inspect", KEYS.everything, 1, 0, 1)
    assert (record, waiters, waiting) == (b"", [], 0)


@pytest.mark.parametrize("limit", [b"1 4", b"1 4 60000000"])
def test_look_by_a_program_lists_no_permits(locks, limit):
    keys = SlotKeys.of(b"redsync:", b"x")
    locks.redis.set(keys.limit, limit)
    locks.redis.zadd(keys.lock, {f"{CLIENT}:7:1": 4_000_000_000_000})
    kind, claims, held, *_ = locks.inspect()
    assert (kind, claims, held) == (b"rate limiter" if b"6" in limit else b"semaphore", [], 0)


def test_inspect_changes_nothing(locks, lasts):
    locks.acquire(lease=20_000)
    locks.queue(OTHER)
    before = locks.node.dump()
    locks.inspect()
    assert locks.node.dump() == before
    assert lasts(locks.left(), 20_000)
