"""Locks of other libraries, and values that are no locks, as `ls`, `show` and `break` show them."""

import os
import socket

import pytest

BARE = "--prefix="
REDISSON = "3f1c3bd7-2f4b-4c86-9d3c-0a8d6a1f9a10:52"


def on_each(raw, *command):
    for node in raw[:3]:
        node.execute_command(*command)


def kept(raw, name):
    return any(node.exists(name) for node in raw)


@pytest.mark.parametrize(
    ("value", "shown", "expiry"),
    [
        (b"37f1c3c0a5a811f0", "37f1c3c0a5a811f0", ()),  # redis-py's default
        ("\x1b[31m\nb\u202ey".encode(), r"\x1b[31m\nb\u202ey", ()),
        (bytes(range(20)), r"\x00\x01\x02", ("PX", 60_000)),  # rslock's
        (b"\xff\xfe" * 10, r"\xff\xfe", ("PX", 60_000)),
        (b"7" * 200_000, "7" * 64 + "...", ()),
    ],
)
def test_break_takes_the_value_as_show_prints_it(raw, redsync, value, shown, expiry):
    on_each(raw, "SET", "nightly", value, *expiry)
    lines = redsync("show", "nightly", BARE).out.splitlines()
    assert lines[0] == "nightly: mutex"
    assert shown in lines[3]
    assert ("no expiry" in lines[3]) is not bool(expiry)
    typed = lines[lines.index("holders:") + 1].strip()
    done = redsync("break", "nightly", "--owner", typed, "--yes", BARE)
    assert (done.status, done.out) == (0, "released on 3 of 3 nodes\n")
    assert not kept(raw, "nightly")


@pytest.mark.parametrize(("typed", "verb"), [(REDISSON, "PERSIST"), ("3f1c3bd7:52", "TTL"), ("3f1c3bd7", "TTL")])
def test_break_takes_an_owner_of_redisson(raw, redsync, typed, verb):
    for command in ("HSET", "x", REDISSON, 2), ("PEXPIRE", "x", 60_000), (verb, "x"):
        on_each(raw, *command)
    out = redsync("show", "x", BARE).out
    assert "3f1c3bd7:52" in out
    assert REDISSON in out
    assert redsync("break", "x", "--owner", typed, "--yes", BARE).status == 0
    assert not kept(raw, "x")


def test_break_takes_a_process_if_it_has_one_owner_only(three, redsync, other):
    process = f"{socket.gethostname()}:{os.getpid()}"
    three.get_semaphore("s", 3).acquire()
    other.do(three.get_semaphore("s", 3).acquire)
    done = redsync("break", "s", "--owner", process, "--yes")
    assert done.status == 64
    assert done.err.startswith(f"redsync break: {process} may be one of 2 owners, give one in full: {three.id}:")
    three.get_read_write_lock("rw").read_lock.acquire()
    assert f"{process} (read)" in redsync("show", "rw").out
    assert redsync("break", "rw", "--owner", f"{process} (read)", "--yes").status == 0


@pytest.mark.parametrize("word", ["", "37f1c3c", "a5a811f0", "37f1c3c0a5a811f1"])
def test_break_guesses_no_owner(raw, redsync, word):
    on_each(raw, "SET", "x", "37f1c3c0a5a811f0")
    done = redsync("break", "x", "--owner", word, "--yes", BARE)
    assert done.status == 1
    assert "does not hold 'x'" in done.err
    assert kept(raw, "x")


def test_ls_without_a_prefix_lists_locks_and_not_the_whole_database(make_client, raw, redsync):
    three = make_client(n=3, prefix="")
    held = three.get_lock("lock"), three.get_mutex("mutex"), three.get_semaphore("permits", 2), three.get_fair_lock("f")
    assert all(each.acquire(timeout=10) for each in held)
    assert three.get_count_down_latch("latch").try_set_count(2)
    for key, value in {"go": "JgXhx4Cw4bYVYcbs0cu5Xg==", "page": "<html>" * 20, "counter": "17"}.items():
        on_each(raw, "SET", key, value, "PX", 60_000)
    for command in (
        *(("SET", "config", "37f1c3c0a5a811f0"), ("HSET", "user:7", "name", "Ada"), ("HSET", "visits", "today", 5)),
        *(("PEXPIRE", "visits", 60_000), ("RPUSH", "list", 1), ("SADD", "set", 1), ("ZADD", "scores", 1, "ada")),
        *(("XADD", "stream", "*", "a", 1), ("HSET", "java", REDISSON, 1), ("PEXPIRE", "java", 60_000)),
    ):
        on_each(raw, *command)
    names = [entry["name"] for entry in redsync("ls", "--json", BARE).json["names"]]
    assert names == ["f", "go", "java", "latch", "lock", "mutex", "permits"]


def test_break_takes_no_full_id_for_the_beginning_of_another(raw, redsync):
    """The owner `...:5` has released it: `...:52` must keep it."""
    on_each(raw, "HSET", "x", REDISSON, 1)
    assert redsync("break", "x", "--owner", REDISSON[:-1], "--yes", BARE).status == 1
    assert kept(raw, "x")


def test_lock_that_redisson_has_on_several_nodes_is_one_row(raw, redsync):
    """A RedLock has another id on each node."""
    for i, node in enumerate(raw[:3]):
        node.hset("x", REDISSON.replace("3f1c", f"3f1{i}"), 1)
        node.pexpire("x", 60_000)
    (entry,) = redsync("ls", "--json", BARE).json["names"]
    assert [holder["nodes"] for holder in entry["holders"]] == [3]
