"""The keyspace of a virtual node, and its time."""

import pytest

from redsync.testing.simulator.store import UnknownCommandError
from redsync.testing.simulator.values import CommandError


def test_key_lasts_to_its_last_millisecond(do, clock):
    do("set", "k", "v", "px", 100)
    clock.advance_ms(100)
    assert do("get", "k") == b"v"
    assert do("pttl", "k") == 0
    clock.advance_ms(1)
    assert do("get", "k") is None
    assert do("pttl", "k") == -2


def test_key_exists_again_if_the_clock_was_set_back_before_any_command(do, clock):
    do("set", "k", "v", "px", 100)
    clock.advance_ms(101)
    clock.advance_ms(-1)
    assert do("exists", "k") == 1


def test_expired_key_counts_as_missing_for_every_kind_of_command(do, clock):
    do("hset", "k", "f", "v")
    do("pexpire", "k", 100)
    clock.advance_ms(101)
    assert do("zadd", "k", 1, "m") == 1
    assert do("pttl", "k") == -1


def test_time_is_the_node_s_own(do, clock):
    clock.now = 1_700_000_000.25
    assert do("time") == [b"1700000000", b"250000"]


@pytest.mark.parametrize(("left_ms", "seconds"), [(1_499, 1), (1_500, 2), (499, 0)])
def test_ttl_is_rounded(do, left_ms, seconds):
    do("set", "k", "v", "px", left_ms)
    assert do("ttl", "k") == seconds
    assert do("ttl", "none") == -2


def test_unknown_command_is_an_exception_instead_of_a_reply(do):
    with pytest.raises(UnknownCommandError, match="lack the command 'blpop'"):
        do("blpop", "k", 0)


def test_sum_beyond_64_bits_is_refused(do):
    do("set", "k", 2**63 - 1)
    with pytest.raises(CommandError, match="would overflow"):
        do("incr", "k")
    assert do("get", "k") == b"%d" % (2**63 - 1)


def test_snapshot_has_the_present_keys(do, store, clock):
    do("set", "s", "v", "px", 100)
    do("set", "gone", "v", "px", 10)
    do("hset", "h", "f", "v")
    do("zadd", "z", 1.5, "m")
    clock.advance_ms(60)
    assert store.snapshot() == {b"h": ({b"f": b"v"}, None), b"s": (b"v", 40), b"z": ({b"m": 1.5}, None)}


def test_snapshot_stays_when_the_store_changes(do, store):
    do("hset", "h", "f", "v")
    before = store.snapshot()
    do("hset", "h", "f", "w")
    assert before == {b"h": ({b"f": b"v"}, None)}


def test_store_differs_from_a_copy_once_something_has_changed(store, do):
    do("set", "x", 1)
    before = store.copy()
    assert not store.differs(before)
    do("get", "x")
    do("set", "x", 1)
    assert not store.differs(before), "it is the same again"
    do("pexpire", "x", 1000)
    assert store.differs(before)
    store.load(before)
    assert not store.differs(before)
    do("set", "y", 1)
    assert store.differs(before)
    do("del", "x")
    assert store.differs(before)
