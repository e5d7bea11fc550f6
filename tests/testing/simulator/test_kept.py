"""The checkers' view of nodes' records: claims of all kinds, and places in queues."""

import math

import pytest

from redsync.testing.simulator.checks.kept import Kept, kept_claims, kept_places, now_ms

SIMULATION = {"seed": 1, "checkers": ()}


@pytest.fixture
def node(sim):
    return sim.nodes[0]


def do(node, *words):
    node.store.execute(*(word if isinstance(word, bytes) else str(word).encode() for word in words))


def test_claims_of_locks_end_with_their_keys(node):
    do(node, "hset", "lock", "me", 2)
    do(node, "set", "mutex", "me", "px", 1000)
    assert kept_claims(node, b"lock") == [Kept(b"me", b"", 2, math.inf)]
    assert kept_claims(node, b"mutex") == [Kept(b"me", b"", 1, now_ms(node) + 1001)]
    assert kept_claims(node, b"nothing") == []


def test_claims_of_readers_and_writers_count_in_fractions_and_end_separately(node):
    now = now_ms(node)
    do(node, "zadd", "x", now + 1000 + 2 / 1024, "r:me", -(now + 500 + 1 / 1024), "w:me", now, "r:late")
    assert kept_claims(node, b"x") == [Kept(b"me", b"r:", 3, now + 1000), Kept(b"me", b"w:", 2, now + 500)]


def test_permits_that_have_expired_are_left_out(node):
    now = now_ms(node)
    do(node, "zadd", "x", now + 1, "one", now, "other")
    assert kept_claims(node, b"x") == [Kept(b"one", b"", 1, now + 1)]


def test_places_are_kept_until_they_end_and_while_there_is_a_queue(node):
    now = now_ms(node)
    do(node, "hset", "places", "one", f"{now + 1} 0 0 channel", "other", f"{now} 0 0 channel")
    assert kept_places(node, b"queue", b"places") == []
    do(node, "zadd", "queue", 1, "one", 2, "other")
    assert kept_places(node, b"queue", b"places") == [b"one"]
