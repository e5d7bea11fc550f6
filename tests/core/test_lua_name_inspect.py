"""One node's report of a name, whatever is there; it changes nothing."""

import pytest

from redsync._core.client_records import ClientRecord
from redsync._core.keys import LatchKeys, LockKeys, client_key
from redsync._core.permits import SlotKeys
from redsync._protocols.surveys import NameLook, key_patterns, look_command, name_of_key

PREFIX, NAME = b"redsync:", b"x"
KEYS, LATCH = SlotKeys.of(PREFIX, NAME), LatchKeys.of(PREFIX, NAME)
CLIENT = "285475da-9152-4c83-822a-67ee2f116a79"
ME = f"{CLIENT}:1"


@pytest.fixture
def look(node):
    def look(most=100, *, listing=False):
        command = look_command(PREFIX, NAME, most, listing=listing)
        before = node.dump()
        found = NameLook.read(node.run("name_inspect", command.keys, *command.args))
        assert node.dump() == before
        return found

    return look


def test_look_reports_the_client_behind_a_lock(node, look):
    node.redis.hset(KEYS.lock, ME, 3)
    node.redis.pexpire(KEYS.lock, 60_000)
    node.redis.set(f"redsync:client:{CLIENT}", ClientRecord("host", 7, "program", 1.5).pack())
    found = look()
    (claim,) = found.claims
    assert (found.kind, claim.owner, claim.hold_count, claim.mode) == ("lock", ME, 3, None)
    assert claim.client == ClientRecord("host", 7, "program", 1.5)
    assert 0 < claim.remaining <= 60


def test_look_leaves_out_permits_that_have_expired(node, look):
    node.redis.set(KEYS.limit, "1 4")
    node.redis.zadd(KEYS.lock, {"dead": node.now() - 1, ME: node.now() + 60_000})
    node.redis.hset(KEYS.slots, mapping={"dead": "0", ME: "1,3"})
    found = look()
    assert (found.kind, found.permits, found.held) == ("semaphore", 4, 1)
    assert [(claim.owner, claim.hold_count) for claim in found.claims] == [(ME, 2)]


def test_look_knows_permits_where_the_limit_is_unknown(node, look):
    node.redis.zadd(KEYS.lock, {ME: node.now() + 60_000})
    node.redis.hset(KEYS.slots, ME, "2")
    found = look()
    assert (found.kind, found.permits, found.claims[0].owner) == ("semaphore", 0, ME)


def test_look_lists_at_most_as_many_holders_as_requested(node, look):
    node.redis.set(KEYS.limit, "1 10 60000000")
    until = node.now() + 60_000
    node.redis.zadd(KEYS.lock, {f"client:{number}": until - number for number in range(10)})
    found = look(most=3)
    assert (found.kind, found.window, found.held) == ("rate limiter", 60.0, 10)
    assert [claim.owner for claim in found.claims] == ["client:9", "client:8", "client:7"], "the first to end"


def test_look_reports_both_modes_of_a_read_write_lock(node, look):
    until = node.now() + 60_000
    node.redis.zadd(KEYS.lock, {"w:me:1": -(until + 1 / 1024), "r:me:1": until, "r:dead:1": 5, "w:dead:1": -5})
    found = look()
    assert found.kind == "read-write lock"
    assert [(claim.owner, claim.mode, claim.hold_count) for claim in found.claims] == [
        ("me:1", "write", 2),
        ("me:1", "read", 1),
    ]
    assert [claim.mode for claim in look(most=1).claims] == ["write"]


def test_look_lists_waiters_but_not_those_that_are_dead_or_hold_it(node, look):
    node.redis.hset(KEYS.lock, f"{ME}:5", 1)
    node.redis.pexpire(KEYS.lock, 60_000)
    node.redis.zadd(KEYS.queue, {ME: 1, "b:2": 4, "a:1": 2, "dead:1": 0, "writer:1": 3 - 2**52})
    places = {ME: 60_000, "b:2": 60_000, "a:1": 60_000, "dead:1": -1, "writer:1": 60_000}
    for owner, lasts in places.items():
        node.redis.hset(KEYS.places, owner, f"{node.now() + lasts} 5 1 0 channel")
    found = look()
    assert [waiter.owner for waiter in found.waiters] == ["a:1", "writer:1", "b:2"]
    assert found.waiting == 3


def test_look_reports_a_latch_beside_a_mutex(node, look):
    node.redis.set(KEYS.lock, "value", px=60_000)
    node.redis.hset(LATCH.latch, mapping={"generation": 1, "size": 5, "one": 2, "two": 1})
    found = look()
    assert (found.kind, found.claims[0].owner, found.claims[0].hold_count) == ("mutex", "value", 1)
    assert 0 < found.claims[0].remaining <= 60
    assert (found.latch.size, found.latch.left, found.latch.remaining) == (5, 2, None)


@pytest.mark.parametrize("kind", ["list", "set", "zset", "string", "hash"])
def test_look_names_a_foreign_value_by_its_type(kind, node, look):
    write = {
        "list": lambda: node.redis.rpush(KEYS.lock, 1),
        "set": lambda: node.redis.sadd(KEYS.lock, 1),
        "zset": lambda: node.redis.zadd(KEYS.lock, {"a": 1}),
        "string": lambda: node.redis.set(KEYS.lock, "forever"),
        "hash": lambda: node.redis.hset(KEYS.lock, "a", "b"),
    }
    write[kind]()
    found = look(listing=True)
    assert (found.kind, found.claims) == (kind, ())
    assert look().kind == ("mutex" if kind == "string" else kind), "of one name, a string counts as a mutex"


def test_patterns_match_the_keys_of_names_and_no_others(node):
    for name in (b"ab", b"ac", b"b", b"a{t}"):
        for key in (SlotKeys.of(b"p*:", name).queue, SlotKeys.of(b"p*:", name).lock, b"pq:" + name):
            node.redis.set(key, 1)
    found = {
        name_of_key(b"p*:", key) for pattern in key_patterns(b"p*:", b"a[!c]*") for key in node.redis.scan_iter(pattern)
    }
    assert found - {None} <= {b"ab", b"ac", b"a{t}"}
    found = {
        name_of_key(b"p*:", key) for pattern in key_patterns(b"p*:", b"a[^c]*") for key in node.redis.scan_iter(pattern)
    }
    assert found == {b"ab", b"a{t}"}


@pytest.mark.parametrize("prefix", [b"redsync:", b"", b"p*:", b"{p}"])
@pytest.mark.parametrize("name", [b"x", b"{x}", b"a{x"])
def test_every_key_that_shows_a_name_is_found(prefix, name, node):
    slots = SlotKeys.of(prefix, name)
    keys = slots.lock, LatchKeys.of(prefix, name).latch, slots.queue
    for key in keys:
        node.redis.set(key, 1)
    found = {key for pattern in key_patterns(prefix, b"*") for key in node.redis.scan_iter(pattern)}
    assert found == set(keys)
    assert {name_of_key(prefix, key) for key in keys} == {name}


# Locks and mutexes of scripts, as programs look at them.


EVERYTHING = LockKeys.of(PREFIX, NAME).everything
OWNER = f"{CLIENT}:7:1".encode()
"""A claim of that client."""


# The client behind the holder.


def announce(claims, client=CLIENT):
    claims.node.run("client_announce", (client_key(client),), b"a record", 65_000)


FOREIGN = [b"any value", b"", b":7", f"{CLIENT}:".encode(), f" {CLIENT}:7:1".encode()]


@pytest.mark.parametrize("owner", [OWNER, *FOREIGN])
def test_inspect_shows_the_record_of_the_holders_client_and_no_other(mutexes, owner):
    def record():
        _, [[*_, record]], *_ = mutexes.inspect()
        return record

    mutexes.put(owner)
    announce(mutexes, "")
    announce(mutexes, CLIENT.replace("2", "3"))
    assert record() == b"", "nothing is known yet"
    announce(mutexes)
    assert record() == (b"a record" if owner == OWNER else b"")
    mutexes.redis.delete(client_key(CLIENT))
    mutexes.redis.rpush(client_key(CLIENT), "a record")
    assert record() == b"", "that is none"


def test_inspect_lists_the_waiters_that_have_waited_longest(locks):
    locks.acquire()
    for i in range(150):
        locks.queue(b"client-%03d:1" % i, waited=150_000 - 1000 * i)
    _, _, _, waiters, waiting, *_ = locks.inspect()
    assert ([owner for owner, _ in waiters], waiting) == ([b"client-%03d" % i for i in range(100)], 150)


def test_inspect_for_holders_alone_counts_no_waiters_and_reads_no_records(locks):
    locks.acquire(OWNER)
    announce(locks)
    locks.queue(b"client-b:2")
    _, [[*_, record]], _, waiters, waiting, *_ = locks.node.run("name_inspect", EVERYTHING, 1, 0, 1)
    assert (record, waiters, waiting) == (b"", [], 0)
