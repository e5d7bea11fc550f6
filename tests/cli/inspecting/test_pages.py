"""Pages of names from real nodes: each name once, however they are spread, and no query before its page is read."""

import random

import pytest

from redsync._core.keys import LatchKeys
from redsync._core.slots import SlotKeys
from redsync.cli import pages
from redsync.cli.asking import Nodes
from redsync.cli.pages import Pages, Window
from tests.support.fake_server import FakeServer

PREFIX = b"redsync:"


@pytest.fixture
def three_nodes(nodes):
    with Nodes(nodes.urls[:3], PREFIX.decode(), 5.0) as chosen:
        yield chosen


@pytest.fixture
def small(monkeypatch):
    """Few keys per SCAN, and per EXISTS."""
    monkeypatch.setattr(pages, "PAGE", 10)
    monkeypatch.setattr(pages, "_TOGETHER", 3)


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


def told(each_page):
    """Return the names of all pages."""
    return [name for looks in each_page for name in sorted({name for each in looks for name in each})]


@pytest.mark.parametrize("seed", range(2))
def test_each_name_is_listed_once_wherever_it_is_stored(seed, raw, three_nodes, small):
    rng = random.Random(seed)
    names = {b"%s-%d" % (rng.choice([b"n", b"{t}", b"{", b"}n{n}"]), number) for number in range(60)}
    for name in sorted(names):
        for node in rng.sample(raw[:3], rng.randint(1, 3)):
            for keep in rng.sample([keep_lock, keep_limit, keep_latch, keep_queue], rng.randint(1, 3)):
                keep(node, name)
    found = told(Pages(three_nodes, b"*", 7))
    assert sorted(found) == sorted(names), f"seed {seed}"
    assert sorted(told(Pages(three_nodes, b"n-*", 7))) == sorted(name for name in names if name.startswith(b"n-"))


@pytest.mark.parametrize("prefix", [b"", b"{", b"p*:"])
def test_each_name_is_listed_once_whatever_the_prefix(prefix, raw, nodes, small):
    names = [b"a", b"c{d", b"e", b"{b}", b"{f}"]
    for name in names:
        for node in raw[:3]:
            for key in (SlotKeys.of(prefix, name).limit, SlotKeys.of(prefix, name).queue):
                node.set(key, "1 3", px=600_000)
    with Nodes(nodes.urls[:3], prefix.decode(), 5.0) as chosen:
        assert sorted(told(Pages(chosen, b"*", 1))) == names


def test_key_that_only_resembles_those_of_redsync_is_not_a_name(raw, three_nodes):
    raw[0].set(b"redsync_limit:{redsync:a{b}c}", "1 3")
    keep_lock(raw[0], b"x")
    assert told(Pages(three_nodes, b"*")) == [b"x"]


def test_page_is_returned_before_the_next_is_scanned(raw, three_nodes, small):
    for number in range(100):
        keep_lock(raw[0], b"%d" % number)
    raw[0].config_resetstat()
    looks = next(iter(Pages(three_nodes, b"*", 5)))
    assert len(looks[0]) == 5
    assert raw[0].info("commandstats")["cmdstat_scan"]["calls"] == 1
    assert raw[0].info("commandstats")["cmdstat_evalsha"]["calls"] == 5


def test_node_that_fails_meanwhile_is_left_out_and_the_others_list_all(raw, nodes, three_nodes, small):
    names = [b"%02d" % number for number in range(40)]
    for name in names:
        keep_lock(raw[0], name)
        keep_lock(raw[2], name)
    listing = Pages(three_nodes, b"*", 5)
    each_page = iter(listing)
    found = told([next(each_page)])
    nodes.kill(0)
    found += told(each_page)
    assert set(found) == set(names)
    assert [answer.error is None for answer in listing.answers] == [False, True, True]


def test_name_that_scan_repeats_is_listed_once():
    """SCAN repeats keys while the table is being resized."""
    replies = iter([b"5", b"0", b"0", b"0"])
    key = b"*1\r\n$9\r\nredsync:x\r\n"

    def answer(words):
        word = words[0].upper()
        if word == b"SCAN":
            return b"*2\r\n$1\r\n%b\r\n%b" % (next(replies), key if words[3].startswith(PREFIX) else b"*0\r\n")
        if word.startswith(b"EVAL"):
            return b"*8\r\n$4\r\nlist\r\n*0\r\n:0\r\n*0\r\n:0\r\n:0\r\n:0\r\n*0\r\n"
        return b"+PONG\r\n" if word == b"PING" else b"+OK\r\n"

    server = FakeServer(answer)
    with Nodes([server.url], PREFIX.decode(), 5.0) as one:
        assert told(Pages(one, b"*", 1)) == [b"x"]
    assert list(replies) == []
    server.close()


# Windows


def seen(window):
    return sorted({name for each in window.look()[1] for name in each})


def test_window_of_few_names_shows_all(raw, three_nodes):
    window = Window(three_nodes, b"*", 3)
    assert (seen(window), window.is_full) == ([], False)
    for name in (b"a", b"b", b"c"):
        keep_lock(raw[0], name)
    assert (seen(window), window.is_full) == ([b"a", b"b", b"c"], False)
    raw[0].delete(PREFIX + b"b")
    assert (seen(window), window.is_full) == ([b"a", b"c"], False)


def test_name_stays_in_a_full_window_until_nothing_is_stored_under_it(raw, three_nodes):
    window = Window(three_nodes, b"*", 2)
    for name in (b"m", b"n"):
        keep_lock(raw[0], name)
    assert (seen(window), window.is_full) == ([b"m", b"n"], False)
    for name in (b"a", b"z"):
        keep_lock(raw[0], name)
    assert (seen(window), window.is_full) == ([b"m", b"n"], True)
    raw[0].delete(PREFIX + b"m")
    assert (seen(window), window.is_full) == ([b"a", b"n"], True)


def test_heavier_name_enters_a_full_window(raw, three_nodes):
    window = Window(three_nodes, b"*", 1, lambda look: look.waiting)
    keep_lock(raw[0], b"a")
    assert seen(window) == [b"a"]
    keep_queue(raw[1], b"b")
    assert seen(window) == [b"b"]


def test_window_scans_the_keys_in_steps(raw, three_nodes, small, monkeypatch):
    monkeypatch.setattr(pages, "STEPS", 2)
    names = [b"%02d" % number for number in range(60)]
    for name in names:
        keep_lock(raw[1], name)
    window = Window(three_nodes, b"*", 100)
    assert 0 < len(seen(window)) < 60
    for _ in range(12):
        seen(window)
    assert seen(window) == names


def test_window_keeps_its_names_while_too_few_nodes_answer(raw, nodes, three_nodes):
    window = Window(three_nodes, b"*", 2)
    keep_lock(raw[0], b"x")
    assert seen(window) == [b"x"]
    nodes.kill(1)
    nodes.kill(2)
    raw[0].delete(PREFIX + b"x")
    assert seen(window) == []
    keep_lock(raw[0], b"x")
    for name in (b"a", b"b"):
        keep_lock(raw[0], name)
    assert seen(window)[-1] == b"x"
