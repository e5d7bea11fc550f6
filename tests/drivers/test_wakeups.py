"""Wake-ups: nodes' signals and hand-overs reach the waiters that listen; by hand, and in a thread."""

import math
import threading
from typing import NamedTuple

import pytest

from redsync._drivers.wakeups import Wakeups
from redsync._signal_safe import SafeLock

NOW, UNTIL, GRACE = 100.0, 130.0, 0.5
KEY = b"client-a:1 redsync:x"


@pytest.fixture
def wakeups():
    """Wake-ups of a transport with a stopped clock."""
    wakeups = Wakeups(SafeLock(threading.Lock()), lambda: NOW)
    wakeups.subscribe(KEY)
    return wakeups


class Sender(NamedTuple):
    """A node that sends a wake-up."""

    bit: int
    remembers_since: float = -math.inf


def say(wakeups, bit, ask_id, key=KEY):
    wakeups.receive([b"message", b"redsync:wake:client-a", ask_id + b" " + key], Sender(bit))


def sleep(waits, *meanwhile):
    """Run the waits, with one event in each; return the instants and the result."""
    things, untils = iter(meanwhile), []
    while True:
        try:
            _, until = next(waits)
        except StopIteration as stop:
            return untils, stop.value
        untils.append(until)
        next(things, lambda: None)()


# Counting.


@pytest.mark.parametrize(
    ("waits_for", "signals", "came"),
    [
        (b"7", [(0b001, b"7"), (0b010, b"0"), (0b100, b"7")], (3, 0b101)),
        (b"7", [(0b010, b"0"), (0b010, b"7")], (1, 0b010)),
        # The claim of an earlier attempt was rolled back since: its hand-over is only a wake-up.
        *((b"7", [(0b001, ask_id)], (1, 0)) for ask_id in (b"0", b"6", b"77", b"")),
        *((b"", [(0b001, ask_id)], (1, 0)) for ask_id in (b"0", b"7")),
    ],
)
def test_wait_for_nodes_counts_each_node_once_and_reports_hand_overs_of_its_ask(wakeups, waits_for, signals, came):
    def all_signal():
        for bit, ask_id in signals:
            say(wakeups, bit, ask_id)

    waits = wakeups.wait_for_nodes(KEY, UNTIL, came[0], GRACE, *filter(None, [waits_for]))
    assert sleep(waits, all_signal) == ([UNTIL], came)


def test_hand_over_counts_only_from_nodes_that_remember_long_enough(wakeups):
    wakeups.subscribe(KEY, 60.0)

    def all_say():
        nodes = Sender(0b001), Sender(0b010, NOW - 59.0), Sender(0b100, NOW - 60.0), Sender(0b1000, math.inf)
        for node in nodes:
            wakeups.receive([b"message", b"redsync:wake:client-a", b"7 " + KEY], node)

    assert sleep(wakeups.wait_for_nodes(KEY, UNTIL, 4, GRACE, b"7"), all_say) == ([UNTIL], (4, 0b101))


@pytest.mark.parametrize(
    "push",
    [
        *([b"message", b"wake", b"7 " + key] for key in (b"client-a:2 redsync:x", KEY + b" ", b"client-a:1", b"")),
        [b"subscribe", b"wake", b"7 " + KEY],
        [],
        [[]],
        [None, {}],
        [b"7 " + KEY],
        [b"message", b"wake", [b"7 " + KEY]],
    ],
)
def test_wait_for_nodes_is_not_ended_by_messages_for_others_and_other_pushes(wakeups, push):
    waits = wakeups.wait_for_nodes(KEY, UNTIL, 1, GRACE, b"7")
    assert sleep(waits, lambda: wakeups.receive(push, Sender(0b1))) == ([UNTIL], (0, 0))


def test_name_with_blanks_is_parsed_whole(wakeups):
    key = b"client-a:1 redsync:a  name \r\n\xff"
    wakeups.subscribe(key)
    waits = wakeups.wait_for_nodes(key, UNTIL, 1, GRACE, b"7")
    assert sleep(waits, lambda: say(wakeups, 0b1, b"7", key)) == ([UNTIL], (1, 0b1))


def test_wait_for_an_event_of_this_process_ends_with_it_and_leaves_nothing(wakeups):
    for _ in range(2):
        waits = wakeups.wait_for_event(KEY, UNTIL, lambda: False)
        assert sleep(waits, lambda: wakeups.signal(KEY)) == ([UNTIL], (1, 0))
        assert not wakeups._events


# Duration.


def test_wait_for_nodes_waits_briefly_for_the_others_after_the_first(wakeups):
    waits = wakeups.wait_for_nodes(KEY, UNTIL, 3, GRACE, b"7")
    untils, came = sleep(waits, lambda: say(wakeups, 0b001, b"7"), lambda: say(wakeups, 0b010, b"7"))
    assert untils == [UNTIL, NOW + GRACE]
    assert came == (2, 0b011)


def test_grace_for_the_others_ends_with_the_sleep(wakeups):
    waits = wakeups.wait_for_nodes(KEY, NOW + GRACE / 2, 3, GRACE, b"7")
    assert sleep(waits, lambda: say(wakeups, 0b001, b"7"))[0] == [NOW + GRACE / 2] * 2


@pytest.mark.parametrize("key", [None, b"not listened for"])
def test_wait_for_nodes_without_a_mailbox_counts_nothing(wakeups, key):
    waits = wakeups.wait_for_nodes(key, UNTIL, 1, GRACE, b"7")
    assert sleep(waits, lambda: say(wakeups, 0b1, b"7", key or b"")) == ([UNTIL], (0, 0))


# Earlier signals.


def test_hand_over_before_the_wait_is_not_lost(wakeups):
    """A node may be quicker than the verdict of the round that asked it."""
    say(wakeups, 0b001, b"7")
    waits = wakeups.wait_for_nodes(KEY, UNTIL, 2, GRACE, b"7")
    assert sleep(waits, lambda: say(wakeups, 0b100, b"7"))[1] == (2, 0b101)


@pytest.mark.parametrize("call", ["subscribe", "unsubscribe"])
def test_subscribe_forgets_earlier_signals(wakeups, call):
    say(wakeups, 0b1, b"7")
    getattr(wakeups, call)(KEY)
    assert sleep(wakeups.wait_for_nodes(KEY, UNTIL, 1, GRACE, b"7")) == ([UNTIL], (0, 0))
