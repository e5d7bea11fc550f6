"""Names from real nodes: each name once, however they are spread."""

import argparse
import random

import pytest

from redsync._core.keys import LatchKeys
from redsync._core.permits import SlotKeys
from redsync.cli import queries
from redsync.cli.queries import Nodes, look_around

PREFIX = b"redsync:"


def chosen(nodes, prefix):
    return Nodes(argparse.Namespace(urls=nodes.urls[:3], prefix=prefix.decode(), timeout=5.0))


@pytest.fixture
def three_nodes(nodes):
    return chosen(nodes, PREFIX)


@pytest.fixture
def small(monkeypatch):
    """Few keys per SCAN."""
    monkeypatch.setattr(queries, "KEYS", 10)


def keep_lock(node, name):
    node.hset(PREFIX + name, "stranger:1", 1)
    node.pexpire(PREFIX + name, 600_000)


def keep_limit(node, name):
    node.set(SlotKeys.of(PREFIX, name).limit, "1 3")


def keep_latch(node, name):
    node.hset(LatchKeys.of(PREFIX, name).latch, mapping={"generation": "g", "size": 3})


def keep_queue(node, name):
    """Store a queue with one waiter whose place does not expire."""
    node.zadd(SlotKeys.of(PREFIX, name).queue, {"stranger:2": 1})
    node.hset(SlotKeys.of(PREFIX, name).places, "stranger:2", f"{2**52} mark guard channel")


def listed(nodes, pattern):
    return sorted({name for each in look_around(nodes, pattern, 1000)[1] for name in each})


@pytest.mark.parametrize("seed", range(2))
def test_each_name_is_listed_once_wherever_it_is_stored(seed, raw, three_nodes, small):
    rng = random.Random(seed)
    names = {b"%s-%d" % (rng.choice([b"n", b"{t}", b"{", b"}n{n}"]), number) for number in range(60)}
    for name in sorted(names):
        for node in rng.sample(raw[:3], rng.randint(1, 3)):
            for keep in rng.sample([keep_lock, keep_limit, keep_latch, keep_queue], rng.randint(1, 3)):
                keep(node, name)
    assert listed(three_nodes, b"*") == sorted(names), f"seed {seed}"
    assert listed(three_nodes, b"n-*") == sorted(name for name in names if name.startswith(b"n-"))
