"""The scripts of the fenced lock on a real server: its tokens, in which it differs from the plain lock."""

import pytest
import redis

from redsync._core.memory import BIRTH_KEY
from tests.core.conftest import KEYS, LEASE, ME, PLACE, Claims, guard_of, wake_channel

OTHER = b"client-b:1"
TOKENS = KEYS.foreign_token, KEYS.token
DAY = 86_400_000


class FencedNode(Claims):
    def acquire(self, owner=ME, known=0, *, count=1, lease=LEASE, guard=0):
        return self.node.run(
            "fenced_lock_acquire", (KEYS.lock, *TOKENS), owner, count, lease, guard_of(guard) or "0,-,", known
        )

    def queue(self, owner=ME, known=0, ask_id=0):
        words = owner, 1, LEASE, "0,-,", PLACE, 0, wake_channel(owner), ask_id, known
        return self.node.run("fenced_lock_acquire", (*KEYS.all, *TOKENS), *words)

    @property
    def token(self):
        return int(self.redis.get(KEYS.token))


@pytest.fixture
def fenced(node):
    """A node that never forgot anything."""
    node.redis.set(BIRTH_KEY, "original 1 -")
    return FencedNode(node, "fenced_lock")


def micros(node):
    seconds, micros = node.redis.time()
    return seconds * 1_000_000 + micros


def test_first_token_is_the_nodes_clock(fenced):
    before = micros(fenced)
    token = fenced.acquire()
    assert before <= token <= micros(fenced)
    assert fenced.token == token
    assert DAY - 2000 < fenced.redis.pttl(KEYS.token) <= DAY
    assert fenced.redis.hgetall(KEYS.lock) == {ME: b"1"}
    assert LEASE - 2000 < fenced.redis.pttl(KEYS.lock) <= LEASE


def test_refusal_gives_no_token_and_names_the_holder(fenced):
    fenced.redis.set(KEYS.token, 10)
    fenced.acquire(OTHER)
    remaining, holder, _ = fenced.acquire()
    assert holder == OTHER
    assert 0 < remaining <= LEASE
    assert fenced.queue()[1:] == [OTHER, 0, 0]
    assert fenced.redis.zrange(KEYS.queue, 0, -1) == [b"client-a"]
    assert fenced.token == 11
    fenced.release(OTHER)
    assert fenced.queue() == 12
    assert not fenced.redis.exists(KEYS.queue), "a waiter that is granted leaves the queue"


def test_existing_claim_gets_a_higher_token_too(fenced):
    """It may belong to an earlier hold of that owner, which was never released."""
    token = fenced.acquire()
    fenced.redis.pexpire(KEYS.lock, 1000)
    assert fenced.acquire() == -(token + 1)
    assert fenced.queue() == -(token + 2)
    fenced.acquire(lease=1000)
    assert fenced.redis.pttl(KEYS.lock) > 2000


def test_node_without_memory_grants_nothing_and_gives_no_token(fenced):
    fenced.redis.delete(BIRTH_KEY)
    with pytest.raises(redis.ResponseError, match="FORGETFUL -1"):
        fenced.acquire(guard=1000)
    assert fenced.redis.keys() == []


# Tokens that a node may have forgotten.

MINUTE = 60_000


def be_born(fenced, kind, age, process="-"):
    """Write a birth record of that age, ms; return the instant of the birth, us."""
    born = fenced.now() - age
    fenced.redis.set(BIRTH_KEY, f"{kind} {born} {process}")
    return born * 1000


@pytest.mark.parametrize(
    ("record", "has", "knows", "gives"),
    [
        # Since its birth it may have granted any token up to its clock then.
        pytest.param(("newborn", 0), None, None, 0, id="above any that it can have forgotten"),
        # A forgotten token may come from a node ahead by the guard. Then it grants once its own clock has caught up.
        pytest.param(("newborn", 30_000), None, None, 30_000_000, id="above those of fast clocks too"),
        pytest.param(("newborn", 0), 1000, None, 1001, id="above its own"),
        pytest.param(("newborn", 0), 1000, 5000, 5001, id="above what the asker knows"),
        pytest.param(("blank", 0), None, None, 0, id="born at the first look, without a guard"),
    ],
)
def test_node_that_may_have_forgotten_gives_a_token_above_all_others(fenced, record, has, knows, gives):
    """Tokens are relative to its birth; None: one of long ago. With the record goes the guard, ms."""
    kind, guard = record
    born = be_born(fenced, kind, MINUTE)
    fenced.redis.set(KEYS.token, 10 if has is None else born + has)
    assert fenced.acquire(guard=guard, known=born + knows if knows else 0) == born + gives
    fenced.release()
    assert fenced.acquire(OTHER, guard=guard) == born + gives + 1, "and then the next, so that nodes stay in step"


@pytest.mark.parametrize("record", [None, "original 1", "original 1 another", "newborn 1 another", "a lock"])
def test_node_whose_record_does_not_count_is_treated_as_born_now(fenced, record):
    """Memory is not guarded, and the node was emptied, or its data replaced."""
    fenced.redis.set(KEYS.token, 10)
    fenced.redis.set(BIRTH_KEY, record) if record else fenced.redis.delete(BIRTH_KEY)
    before = micros(fenced)
    token = fenced.acquire()
    assert before <= token <= micros(fenced)
    fenced.release()
    assert token < fenced.acquire() <= micros(fenced)


@pytest.mark.parametrize("by_hand", [0, 1, -7])
@pytest.mark.parametrize("known", [0, 1])
def test_token_that_looks_like_no_token_is_replaced_by_the_clock(fenced, by_hand, known):
    """A 1 or 2 would be the reply of a lock without tokens, so that the first vote of each such node would fail."""
    fenced.redis.set(KEYS.token, by_hand)
    before = micros(fenced)
    assert before <= fenced.acquire(known=known) <= micros(fenced)


@pytest.mark.parametrize("value", ["text", "list"])
def test_foreign_value_at_the_tokens_key_is_an_error_and_prevents_the_claim(fenced, value):
    fenced.redis.set(KEYS.token, "mine") if value == "text" else fenced.redis.rpush(KEYS.token, "mine")
    before = fenced.node.dump()
    with pytest.raises(redis.ResponseError, match=r"not an integer|WRONGTYPE"):
        fenced.acquire()
    assert fenced.node.dump() == before


def test_foreign_value_at_the_key_is_reported_and_left_unchanged(fenced):
    fenced.redis.set(KEYS.lock, "mine")
    assert fenced.acquire() == 0
    assert set(fenced.redis.keys()) == {KEYS.lock, BIRTH_KEY}


def test_inspect_distinguishes_a_lock_with_tokens_from_one_without(fenced, locks):
    locks.acquire()
    assert locks.inspect()[0] == b"lock"
    locks.release()
    fenced.acquire()
    assert locks.inspect()[0] == b"fenced lock"
