"""The scripts of the count-down latch on a real server."""

import time

import pytest
import redis

from redsync._core.keys import LatchKeys
from tests.core.conftest import guard_of, process_of

KEYS = LatchKeys.of(b"redsync:", b"x")
A, B = b"client-a", b"client-b"
ADA, BOB = b"redsync:wake:a client-a:1", b"redsync:wake:b client-b:1"
KEEP = 60_000


class LatchNode:
    def __init__(self, node):
        self.node, self.redis = node, node.redis

    def tell(self, generation=0, size=0, *arrivals, who=b"", place=5000, memory=0, keep=KEEP, differ=0):
        words = keep, who, place, guard_of(memory, process_of(self.redis)), differ, generation, size
        return self.node.run("latch_exchange", KEYS.all, *words, *arrivals)

    def leave(self, who):
        return self.node.run("latch_leave", KEYS.all, who)

    def waiters(self):
        return self.redis.zrange(KEYS.waiters, 0, -1)


@pytest.fixture
def latch(node):
    return LatchNode(node)


def test_latch_is_set_counted_down_and_kept(latch):
    assert latch.tell(7, 3) == [7, 3]
    assert latch.tell(7, 3, A, 1) == [7, 3, A, 1]
    assert latch.tell(7, 3, A, 1) == [7, 3, A, 1], "a repetition changes nothing"
    assert latch.tell() == [7, 3, A, 1]
    assert KEEP - 2000 < latch.redis.pttl(KEYS.latch) <= KEEP
    latch.tell(keep=100_000)
    latch.tell()
    assert latch.redis.pttl(KEYS.latch) > 90_000, "lengthened, never shortened"


def test_higher_totals_and_later_generations_replace_others(latch):
    latch.tell(7, 9, A, 3, B, 1)
    assert latch.tell(7, 9, A, 2, B, 2) == [7, 9, A, 3, B, 2]
    assert latch.tell(8, 2, B, 1) == [8, 2, B, 1]
    assert latch.tell(7, 9, A, 3) == [8, 2, B, 1]


def test_all_waiters_are_woken_when_it_opens(latch):
    latch.tell(7, 2, who=ADA)
    latch.tell(7, 2, A, 1, who=BOB)
    assert latch.waiters() == [ADA, BOB]
    with latch.node.listening(b"redsync:wake:a", b"redsync:wake:b") as heard:
        latch.tell(7, 2, B, 1)
        assert latch.node.messages(heard) == [
            (b"redsync:wake:a", b"0 client-a:1 " + KEYS.latch),
            (b"redsync:wake:b", b"0 client-b:1 " + KEYS.latch),
        ]
        latch.tell(7, 2, B, 1)
        assert latch.node.messages(heard) == []
    assert latch.waiters() == []
    latch.tell(who=ADA)
    assert latch.waiters() == [], "an open latch has no waiters"


@pytest.mark.parametrize("size", [0, 2])
def test_waiter_is_woken_when_it_is_deleted_or_set_again(latch, size):
    latch.tell(7, 2, who=ADA)
    with latch.node.listening(b"redsync:wake:a") as heard:
        latch.tell(8, size)
        assert len(latch.node.messages(heard)) == 1
    assert latch.waiters() == []
    assert latch.tell() == [8, size]


def test_places_expire_and_are_renewed_and_removed(latch):
    latch.tell(7, 2, who=ADA, place=30)
    latch.tell(7, 2, who=BOB)
    time.sleep(0.05)
    latch.tell(7, 2, who=BOB)
    latch.tell(7, 2, who=BOB, place=1000)
    assert latch.waiters() == [BOB]
    assert 1000 < latch.redis.pttl(KEYS.waiters) <= 5000
    assert [latch.leave(BOB), latch.leave(BOB)] == [1, 0]
    assert latch.waiters() == []


def test_node_that_may_have_forgotten_does_not_say_that_it_was_never_set(latch):
    with pytest.raises(redis.ResponseError, match="FORGETFUL -1"):
        latch.tell(memory=1000)
    latch.redis.set("redsync_birth", f"original 1 {process_of(latch.redis)}")
    assert latch.tell(memory=1000) == [0, 0]
    latch.redis.set("redsync_birth", f"newborn {int(time.time() * 1000)} {process_of(latch.redis)}")
    with pytest.raises(redis.ResponseError, match="FORGETFUL"):
        latch.tell(memory=60_000)


def write_birth(latch, age_ms=0):
    born = int(time.time() * 1000) - age_ms
    latch.redis.set("redsync_birth", f"newborn {born} {process_of(latch.redis)}")
    return born


@pytest.mark.parametrize("differ", [0, 2_000])
def test_node_that_forgot_vouches_for_a_latch_that_was_set_later(latch, differ):
    """Its generation is a later token than any that it forgot, even if the clocks of nodes differ, by a microsecond."""
    born = write_birth(latch)
    last = (born + differ) * 1000 - 1
    for state in ([7, 2], [7, 2, A, 1], [last, 3]):
        assert latch.tell(*state, memory=KEEP, differ=differ) == [*state, born]
    assert latch.tell(last + 1, 3, B, 1, memory=KEEP, differ=differ) == [last + 1, 3, B, 1]
    assert latch.tell(memory=1000, differ=differ) == [last + 1, 3, B, 1]
    latch.redis.set("redsync_birth", f"newborn {born + 1} {process_of(latch.redis)}")
    assert latch.tell(memory=KEEP, differ=differ) == [last + 1, 3, B, 1, born + 1], "it came back with this"


def test_node_that_forgot_says_so_only_to_clients_that_guard_memory(latch):
    born = write_birth(latch, 2000)
    assert latch.tell(memory=1000) == [0, 0, born], "it may grant, and may have forgotten the latch"
    assert latch.tell(7, 2, memory=0) == [7, 2]
    assert latch.tell(memory=1000) == [7, 2, born]


def test_node_vouches_for_all_once_it_remembers_for_as_long_as_latches_are_kept(latch):
    latch.tell(7, 2, memory=write_birth(latch) and KEEP)
    write_birth(latch, KEEP + 1000)
    assert latch.tell(memory=KEEP) == [7, 2]


def test_node_vouches_for_nothing_under_the_record_of_another_process(latch):
    latch.tell(7, 2)
    latch.redis.set("redsync_birth", "original 1 another")
    assert latch.tell(memory=KEEP) == [7, 2, -1]


def test_emptied_node_that_learns_of_a_latch_is_not_a_new_node(latch):
    *state, born = latch.tell(7, 2, memory=KEEP)
    assert state == [7, 2]
    assert latch.redis.get("redsync_birth") == b"newborn %d %s" % (born, process_of(latch.redis).encode())


@pytest.mark.parametrize("kind", ["string", "list", "hash"])
def test_foreign_value_is_reported_and_left_unchanged(latch, kind, write_foreign):
    write_foreign(kind, KEYS.latch)
    before = latch.node.dump()
    assert latch.tell() == 0
    assert latch.tell(7, 2, A, 1, who=ADA) == 0
    assert latch.node.dump() == before
