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

    def tell(self, generation=0, size=0, *arrivals, who=b"", place=5000, memory=0, keep=KEEP, settled=b""):
        words = keep, who, place, guard_of(memory, process_of(self.redis)), settled, generation, size
        return self.node.run("latch_exchange", KEYS.all, *words, *arrivals)

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


def test_totals_are_set_to_the_higher_value(latch):
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
    assert latch.waiters() == [BOB]
    assert 0 < latch.redis.pttl(KEYS.waiters) <= 5000
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
    life = int(time.time() * 1000) - age_ms
    latch.redis.set("redsync_birth", f"newborn {life} {process_of(latch.redis)}")
    return life


def test_knowledge_that_a_node_gets_after_it_forgot_is_hearsay(latch):
    life = write_birth(latch)
    assert latch.tell(7, 2, memory=KEEP) == [7, 2, life]
    assert latch.tell(7, 2, A, 1, memory=KEEP) == [7, 2, A, 1, life]
    assert latch.tell(8, 3, memory=KEEP) == [8, 3, life], "the next too"
    assert latch.tell(memory=1000) == [8, 3, life]
    assert latch.tell(memory=0) == [8, 3], "a client that does not guard memory does not learn it"
    assert latch.tell(memory=KEEP) == [8, 3, life], "and changes nothing"


def test_hearsay_ends_when_a_client_knows_what_nodes_knew_later(latch):
    life = write_birth(latch)
    latch.tell(7, 2, memory=KEEP)
    assert latch.tell(7, 2, memory=KEEP, settled=b"%d" % (life - 1)) == [7, 2, life], "another node, or earlier"
    assert latch.tell(7, 2, B, 1, memory=KEEP, settled=b"17 %d" % life) == [7, 2, B, 1]
    assert latch.tell(8, 2, memory=KEEP) == [8, 2]


def test_hearsay_ends_when_the_node_remembers_for_as_long_as_latches_are_kept(latch):
    latch.tell(7, 2, memory=write_birth(latch) and KEEP)
    write_birth(latch, KEEP + 1000)
    assert latch.tell(memory=KEEP) == [7, 2]


def test_knowledge_from_before_a_loss_of_memory_is_hearsay(latch):
    """The node came back with old data, and may have known of a later generation, or of totals."""
    first = write_birth(latch, 5000)
    latch.tell(7, 2, memory=KEEP, settled=b"%d" % first)
    assert latch.tell(memory=KEEP) == [7, 2]
    second = write_birth(latch)
    assert latch.tell(memory=KEEP) == [7, 2, second]
    assert latch.tell(7, 2, A, 1, memory=KEEP) == [7, 2, A, 1, second]
    assert latch.tell(8, 2, memory=KEEP) == [8, 2, second]
    assert latch.tell(8, 2, memory=KEEP, settled=b"%d" % second) == [8, 2]
    assert latch.tell(memory=KEEP) == [8, 2]


def test_knowledge_under_the_record_of_another_process_is_hearsay(latch):
    latch.tell(7, 2)
    latch.redis.set("redsync_birth", "original 1 another")
    assert latch.tell(memory=KEEP) == [7, 2, -1]


def test_generation_set_where_nodes_forgot_is_not_hearsay(latch):
    life = write_birth(latch, 2000)
    assert latch.tell(memory=1000) == [0, 0, life], "it may grant, and may have forgotten the latch"
    assert latch.tell(7, 2, memory=1000, settled=b"%d" % life) == [7, 2]


def test_emptied_node_that_learns_of_a_latch_is_not_a_new_node(latch):
    *state, life = latch.tell(7, 2, memory=KEEP)
    assert state == [7, 2]
    assert latch.redis.get("redsync_birth") == b"newborn %d %s" % (life, process_of(latch.redis).encode())


@pytest.mark.parametrize("kind", ["string", "list", "hash"])
def test_foreign_value_is_reported_and_left_unchanged(latch, kind, write_foreign):
    write_foreign(kind, KEYS.latch)
    before = latch.node.dump()
    assert latch.tell() == 0
    assert latch.tell(7, 2, A, 1, who=ADA) == 0
    assert latch.node.dump() == before
