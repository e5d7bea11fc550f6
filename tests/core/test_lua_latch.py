"""The scripts of the count-down latch on a real server."""

import time

import pytest
import redis

from redsync._core.keys import LatchKeys

KEYS = LatchKeys.of(b"redsync:", b"x")
A, B = b"client-a", b"client-b"
ADA, BOB = b"redsync:wake:a:0 client-a:1", b"redsync:wake:b:0 client-b:1"
KEEP = 60_000


class LatchNode:
    def __init__(self, node):
        self.node, self.redis = node, node.redis

    def tell(self, generation=0, size=0, *arrivals, who=b"", place=5000, memory=0, keep=KEEP):
        return self.node.run("latch_exchange", KEYS.all, keep, who, place, memory, generation, size, *arrivals)

    def leave(self, who):
        return self.node.run("latch_leave", KEYS.all, who)

    def waiters(self):
        return self.redis.zrange(KEYS.waiters, 0, -1)


@pytest.fixture
def latch(node):
    return LatchNode(node)


def test_latch_that_was_never_set_leaves_nothing(latch):
    assert latch.tell() == [0, 0]
    assert latch.tell(who=ADA) == [0, 0]
    assert latch.redis.keys() == []


def test_latch_is_set_counted_down_and_kept(latch):
    assert latch.tell(7, 3) == [7, 3]
    assert latch.tell(7, 3, A, 1) == [7, 3, A, 1]
    assert latch.tell(7, 3, A, 1) == [7, 3, A, 1], "a repetition changes nothing"
    assert latch.tell() == [7, 3, A, 1]
    assert KEEP - 2000 < latch.redis.pttl(KEYS.latch) <= KEEP
    latch.tell(keep=100_000)
    latch.tell()
    assert latch.redis.pttl(KEYS.latch) > 90_000, "lengthened, never shortened"


def test_totals_are_set_to_the_higher(latch):
    latch.tell(7, 9, A, 3, B, 1)
    assert latch.tell(7, 9, A, 2, B, 2) == [7, 9, A, 3, B, 2]


def test_later_generation_replaces_and_an_earlier_one_is_ignored(latch):
    latch.tell(7, 3, A, 3)
    assert latch.tell(8, 2, B, 1) == [8, 2, B, 1]
    assert latch.tell(7, 3, A, 3) == [8, 2, B, 1]


def test_generations_may_be_as_large_as_tokens_are(latch):
    latch.tell(1_795_288_890_008_123, 3)
    assert latch.tell(1_795_288_890_008_124, 4) == [1_795_288_890_008_124, 4]
    assert latch.tell(1_795_288_890_008_123, 3) == [1_795_288_890_008_124, 4]


def test_all_who_wait_are_woken_when_it_opens(latch):
    latch.tell(7, 2, who=ADA)
    latch.tell(7, 2, A, 1, who=BOB)
    assert latch.waiters() == [ADA, BOB]
    with latch.node.listening(b"redsync:wake:a:0", b"redsync:wake:b:0") as heard:
        latch.tell(7, 2, B, 1)
        assert latch.node.messages(heard) == [
            (b"redsync:wake:a:0", b"0 client-a:1 " + KEYS.latch),
            (b"redsync:wake:b:0", b"0 client-b:1 " + KEYS.latch),
        ]
        latch.tell(7, 2, B, 1)
        assert latch.node.messages(heard) == []
    assert latch.waiters() == []
    latch.tell(who=ADA)
    assert latch.waiters() == [], "an open latch is not waited for"


@pytest.mark.parametrize("size", [0, 2])
def test_who_waits_is_woken_when_it_is_deleted_or_set_anew(latch, size):
    latch.tell(7, 2, who=ADA)
    with latch.node.listening(b"redsync:wake:a:0") as heard:
        latch.tell(8, size)
        assert len(latch.node.messages(heard)) == 1
    assert latch.waiters() == []
    assert latch.tell() == [8, size]


def test_places_expire_and_are_renewed_and_left(latch):
    latch.tell(7, 2, who=ADA, place=30)
    latch.tell(7, 2, who=BOB)
    time.sleep(0.05)
    latch.tell(7, 2, who=BOB)
    assert latch.waiters() == [BOB]
    assert 0 < latch.redis.pttl(KEYS.waiters) <= 5000
    assert [latch.leave(BOB), latch.leave(BOB)] == [1, 0]
    assert latch.waiters() == []


def test_node_that_may_have_forgotten_does_not_say_that_it_was_never_set(latch):
    with pytest.raises(redis.ResponseError, match="FORGETFUL -1"):
        latch.tell(memory=1000)
    latch.redis.set("redsync_birth", "original 1")
    assert latch.tell(memory=1000) == [0, 0]
    latch.redis.set("redsync_birth", f"newborn {round(time.time() * 1000)}")
    with pytest.raises(redis.ResponseError, match="FORGETFUL"):
        latch.tell(memory=60_000)
    assert latch.tell(7, 2, memory=60_000) == [7, 2], "what it is told it knows"
    assert latch.tell(memory=60_000) == [7, 2]


@pytest.mark.parametrize("kind", ["string", "list", "hash"])
def test_foreign_value_is_told_and_left_as_it_is(latch, kind, write_foreign):
    write_foreign(kind, KEYS.latch)
    before = latch.node.dump()
    assert latch.tell() == 0
    assert latch.tell(7, 2, A, 1, who=ADA) == 0
    assert latch.node.dump() == before
