"""The scripts of the fenced lock on a real server: what is not as with the plain lock, its tokens."""

import pytest
import redis

from tests.core.conftest import KEYS, LEASE, ME, PLACE, wake_channel

OTHER = b"client-b:1"
DAY = 86_400_000


class FencedNode:
    def __init__(self, node):
        self.node, self.redis = node, node.redis

    def acquire(self, owner=ME, known=0, *, count=1, lease=LEASE, guard=0):
        return self.node.run("fenced_lock_acquire", (KEYS.lock, KEYS.token), owner, count, lease, guard, known)

    def queue(self, owner=ME, known=0, mark=0):
        words = owner, 1, LEASE, 0, PLACE, 0, wake_channel(owner), mark, known
        return self.node.run("fenced_lock_acquire", (*KEYS.all, KEYS.token), *words)

    def reenter(self, owner=ME, count=2):
        return self.node.run("fenced_lock_acquire", (KEYS.lock,), owner, count, LEASE, 0)

    def write_back(self, token, owner=ME):
        return self.node.run("fenced_lock_write_back", (KEYS.lock, KEYS.token), owner, token)

    def release(self, owner=ME):
        return self.node.run("lock_release", KEYS.all, owner, 0, KEYS.channel)

    @property
    def token(self):
        return int(self.redis.get(KEYS.token))


@pytest.fixture
def fenced(node):
    return FencedNode(node)


def micros(node):
    seconds, micros = node.redis.time()
    return seconds * 1_000_000 + micros


def test_first_token_is_the_nodes_clock(fenced):
    before = micros(fenced)
    code, token = fenced.acquire()
    assert code == 1
    assert before <= token <= micros(fenced)
    assert fenced.token == token
    assert DAY - 2000 < fenced.redis.pttl(KEYS.token) <= DAY
    assert fenced.redis.hgetall(KEYS.lock) == {ME: b"1"}
    assert LEASE - 2000 < fenced.redis.pttl(KEYS.lock) <= LEASE


def test_each_grant_has_the_next_token(fenced):
    tokens = []
    for owner in (ME, OTHER, ME):
        tokens.append(fenced.acquire(owner)[1])
        fenced.release(owner)
    assert tokens == [tokens[0], tokens[0] + 1, tokens[0] + 2]


def test_token_exceeds_what_the_asker_knows(fenced):
    fenced.redis.set(KEYS.token, 10)
    assert fenced.acquire(known=10) == [1, 11]
    fenced.release()
    assert fenced.acquire(known=2**52) == [1, 2**52 + 1]
    assert fenced.redis.get(KEYS.token) == b"%d" % (2**52 + 1), "spelled with all of its digits"
    fenced.release()
    fenced.redis.delete(KEYS.token)
    assert fenced.acquire(known=2**52) == [1, 2**52 + 1]


def test_refusal_gives_no_token_and_tells_who_holds(fenced):
    fenced.redis.set(KEYS.token, 10)
    fenced.acquire(OTHER)
    remaining, holder = fenced.acquire()
    assert holder == OTHER
    assert 0 < remaining <= LEASE
    assert fenced.queue()[1:] == [OTHER, 0]
    assert fenced.redis.zrange(KEYS.queue, 0, -1) == [ME]
    assert fenced.token == 11


def test_waiter_is_woken_by_a_release_and_leaves_the_queue_when_it_is_granted(fenced):
    fenced.acquire(OTHER)
    fenced.queue(ME)
    with fenced.node.listening(wake_channel(ME)) as subscription:
        fenced.release(OTHER)
        assert fenced.node.messages(subscription) == [(wake_channel(ME), b"0 " + ME + b" " + KEYS.lock)]
    token = fenced.token
    assert fenced.queue(ME) == [1, token + 1]
    assert fenced.redis.keys("redsync_queue*") == []


def test_claim_that_was_there_already_gets_a_higher_token_too(fenced):
    """It may be of an earlier hold of that owner, which nobody gave back."""
    _, token = fenced.acquire()
    fenced.redis.pexpire(KEYS.lock, 1000)
    assert fenced.acquire() == [2, token + 1]
    assert fenced.queue() == [2, token + 2]
    assert fenced.redis.pttl(KEYS.lock) > 2000


def test_re_entry_has_no_token_and_leaves_the_nodes_alone(fenced):
    _, token = fenced.acquire()
    assert fenced.reenter() == 2
    assert fenced.token == token
    assert fenced.redis.hgetall(KEYS.lock) == {ME: b"2"}
    fenced.release()
    assert fenced.reenter() == 1, "told apart from what was there, and undone"
    assert fenced.token == token


def test_node_without_memory_grants_nothing_and_gives_no_token(fenced):
    with pytest.raises(redis.ResponseError, match="FORGETFUL -1"):
        fenced.acquire(guard=1000)
    assert fenced.redis.keys() == []


@pytest.mark.parametrize("value", ["text", "list"])
def test_foreign_value_in_the_tokens_place_is_an_error_and_nothing_is_claimed(fenced, value):
    fenced.redis.set(KEYS.token, "mine") if value == "text" else fenced.redis.rpush(KEYS.token, "mine")
    before = fenced.node.dump()
    with pytest.raises(redis.ResponseError, match=r"not an integer|WRONGTYPE"):
        fenced.acquire()
    assert fenced.node.dump() == before


def test_foreign_value_at_the_key_is_told_and_left_as_it_is(fenced):
    fenced.redis.set(KEYS.lock, "mine")
    assert fenced.acquire() == 0
    assert fenced.redis.keys() == [KEYS.lock]


def test_write_back_raises_and_never_lowers(fenced):
    fenced.redis.set(KEYS.token, 10)
    fenced.acquire()
    assert fenced.write_back(50) == 50
    assert fenced.write_back(50) == 50
    assert fenced.write_back(20) == 50
    assert DAY - 2000 < fenced.redis.pttl(KEYS.token) <= DAY
    fenced.release()
    assert fenced.acquire(OTHER) == [1, 51]


@pytest.mark.parametrize("holder", [OTHER, None])
def test_node_that_does_not_keep_the_claim_is_raised_but_does_not_say_so(fenced, holder):
    if holder:
        fenced.acquire(holder)
    with pytest.raises(redis.ResponseError, match="UNCLAIMED"):
        fenced.write_back(2**52)
    assert fenced.token == 2**52


def test_inspect_tells_a_lock_with_tokens_from_one_without(fenced, locks):
    locks.acquire()
    assert locks.inspect()[0] == b"hash"
    locks.release()
    fenced.acquire()
    assert locks.inspect()[0] == b"fenced"
