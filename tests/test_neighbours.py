"""Values of other libraries under our names: what redsync waits for, wakes, refuses and names, on real nodes.

The layouts are those of Redisson 4.7, redis-py's Lock and Redlock; a few commands stand for their clients.
"""

import time
import uuid

import pytest

import redsync
from redsync import KeyTypeError

pytestmark = pytest.mark.usefixtures("both_flavours", "all_nodes_met")

KINDS = [f"get_{name}" for name, _, like, *_ in redsync._KINDS if like == "lock"]
"""The kinds that share Redisson's layout."""

NO_LOCKS = [
    ["HSET", "x", "name", "Ada", "mail", "x"],
    ["HSET", "x", "today", 5],
    ["HSET", "x", "rate", 3, "interval", 1000, "type", 0],  # a rate limiter
    ["HSET", "x", "mode", "read", "285475da-9152-4c83-822a-67ee2f116a79:52", 1],  # a read-write lock
]
"""Hashes that are no locks of ours."""


def redisson(thread=52):
    return f"{uuid.uuid4()}:{thread}"


@pytest.fixture
def bare(make_client):
    """A client of three nodes whose keys have no prefix, as those of the neighbours."""
    return make_client(n=3, prefix="")


@pytest.fixture
def three(raw):
    return raw[:3]


@pytest.mark.parametrize("make", ["get_lock", "get_mutex"])
def test_waiter_looks_often_while_another_library_has_it(bare, three, other, eventually, make):
    """Its release wakes no waiter here; between two looks of a waiter for our own holder up to 1.5 s pass."""
    for node in three:
        node.set("x", "theirs", px=30_000) if make == "get_mutex" else node.hset("x", redisson(), 1)
    lock = getattr(bare, make)("x")
    other.start(lock.acquire, timeout=20)
    eventually(lambda: min(asked(node) for node in three) >= 3)
    before, began = [asked(node) for node in three], time.monotonic()
    eventually(lambda: all(asked(node) >= first + 10 for node, first in zip(three, before, strict=True)), within=5)
    assert time.monotonic() - began >= 10 * 0.02 / 2, "it does not ask all the time"
    for node in three:
        node.delete("x")
    eventually(lock.locked)
    other.do(lock.release)


def asked(node):
    """How many scripts the node has executed."""
    return node.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0)


def test_redlock_of_redisson_has_one_holder_until_it_is_released_by_force(bare, three):
    """It has another id on each node."""
    lock = bare.get_lock("x")
    for _ in range(20):
        for node in three:
            node.hset("x", redisson(), 1)
            node.pexpire("x", 30_000)
        assert lock.locked()
        (holder,) = bare.inspect("x").holders
        assert holder.owner.endswith(":52")
        assert lock.force_release() is True
        assert not any(node.exists("x") for node in three)


@pytest.mark.parametrize(
    ("make", "command"),
    [
        *((make, command) for make in KINDS for command in NO_LOCKS),
        ("get_mutex", ["HSET", "x", "285475da-9152-4c83-822a-67ee2f116a79:52", 1]),
        ("get_mutex", ["RPUSH", "x", 1]),
        ("get_lock", ["SET", "x", "theirs"]),
    ],
    ids=str,
)
def test_value_that_is_no_such_lock_is_refused_by_every_verb_and_stays(bare, three, make, command):
    for node in three:
        node.execute_command(*command)
    before = [node.dump("x") for node in three]
    lock = getattr(bare, make)("x")
    for verb in (lambda: lock.acquire(timeout=0.1), lock.locked, lock.force_release):
        with pytest.raises(KeyTypeError):
            verb()
    assert [node.dump("x") for node in three] == before


def test_error_names_the_kind_that_is_there(bare, three):
    with bare.get_mutex("x"), pytest.raises(KeyTypeError, match="the key of lock 'x' holds a mutex"):
        bare.get_lock("x").acquire(False)
    with bare.get_lock("z"), pytest.raises(KeyTypeError, match="the key of mutex 'z' holds a lock"):
        bare.get_mutex("z").acquire(False)
    with bare.get_lock("z"), pytest.raises(KeyTypeError, match="the key of mutex 'z' holds"):
        bare.get_mutex("z").force_release()
    for node in three:
        node.rpush("y", 1)
    with pytest.raises(KeyTypeError, match="the key of lock 'y' holds a value of type list"):
        bare.get_lock("y").acquire(False)


def test_latch_of_redisson_is_refused_and_a_mutex_of_that_name_is_not(bare, three):
    latch = bare.get_count_down_latch("x")
    for node in three:
        node.set("x", 3)
    for verb in (lambda: latch.wait(0.1), lambda: latch.try_set_count(2), latch.count):
        with pytest.raises(KeyTypeError):
            verb()
    for node in three:
        node.delete("x")
    with bare.get_mutex("x"):
        assert latch.try_set_count(1)


def test_fenced_lock_is_refused_where_redisson_issues_tokens(bare, three):
    for node in three:
        node.set("redisson_lock_token:{x}", 7)
    with pytest.raises(KeyTypeError):
        bare.get_fenced_lock("x").acquire(False)
    assert not any(node.exists("x") for node in three)


def test_release_hands_over_nothing_beside_a_reader_of_redisson(bare, three, other):
    """Its read-write lock enters a lock of ours that is held."""
    lock = bare.get_lock("x")
    waiting = lock.acquire() and other.start(lock.acquire, timeout=0.5)
    for node in three:
        node.hset("x", mapping={"mode": "read", redisson(): 1})
    lock.release()
    with pytest.raises(KeyTypeError):
        waiting.result(20)
    assert all(node.hlen("x") == 2 for node in three)
