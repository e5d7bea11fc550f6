"""Wake-ups: nodes' signals and hand-overs reach the waiters that listen; by hand, and in a thread."""

import math
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import hiredis
import pytest

from redsync._core.effects import Wait
from redsync._drivers.process import clock
from redsync._drivers.requests import Retry
from redsync._drivers.wakeups import Wakeups

NOW, UNTIL, GRACE = 100.0, 130.0, 0.5
KEY = b"client-a:1 redsync:x"


@pytest.fixture
def wakeups():
    """Wake-ups of a transport with a stopped clock."""
    wakeups = Wakeups(threading.Lock(), lambda: NOW, lambda sleeper: None)
    wakeups.subscribe(KEY)
    return wakeups


class Sender(NamedTuple):
    """A node that sends a wake-up."""

    bit: int
    remembers_since: float = -math.inf


def say(wakeups, bit, mark, key=KEY, kind=b"message"):
    wakeups.take_in([kind, b"redsync:wake:client-a", mark + b" " + key], Sender(bit))


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


def test_wait_for_nodes_counts_signals_and_reports_hand_overs_separately(wakeups):
    def all_signal():
        for bit, mark in [(0b001, b"7"), (0b010, b"0"), (0b100, b"7")]:
            say(wakeups, bit, mark)

    assert sleep(wakeups.wait_for_nodes(KEY, UNTIL, 3, GRACE, b"7"), all_signal) == ([UNTIL], (3, 0b101))


@pytest.mark.parametrize("mark", [b"0", b"6", b"77", b""])
def test_wait_for_nodes_takes_a_signal_with_another_mark_as_a_plain_wake_up(wakeups, mark):
    """The claim of an earlier attempt was rolled back since: its hand-over is only a wake-up."""
    waits = wakeups.wait_for_nodes(KEY, UNTIL, 1, GRACE, b"7")
    assert sleep(waits, lambda: say(wakeups, 0b1, mark)) == ([UNTIL], (1, 0))


@pytest.mark.parametrize("mark", [b"0", b"7"])
def test_wait_for_nodes_without_a_mark_reports_no_hand_over(wakeups, mark):
    assert sleep(wakeups.wait_for_nodes(KEY, UNTIL, 1, GRACE), lambda: say(wakeups, 0b1, mark)) == ([UNTIL], (1, 0))


def test_wait_for_nodes_counts_a_node_once_that_first_wakes_and_then_hands_over(wakeups):
    def signal_twice():
        say(wakeups, 0b10, b"0")
        say(wakeups, 0b10, b"7")

    assert sleep(wakeups.wait_for_nodes(KEY, UNTIL, 2, GRACE, b"7"), signal_twice)[1] == (1, 0b10)


def test_hand_over_counts_only_from_nodes_that_remember_long_enough(wakeups):
    wakeups.subscribe(KEY, 60.0)

    def all_say():
        nodes = Sender(0b001), Sender(0b010, NOW - 59.0), Sender(0b100, NOW - 60.0), Sender(0b1000, math.inf)
        for node in nodes:
            wakeups.take_in([b"message", b"redsync:wake:client-a", b"7 " + KEY], node)

    assert sleep(wakeups.wait_for_nodes(KEY, UNTIL, 4, GRACE, b"7"), all_say) == ([UNTIL], (4, 0b101))


@pytest.mark.parametrize("key", [b"client-a:2 redsync:x", b"client-a:1 redsync:x ", b"client-a:1", b""])
def test_wait_for_nodes_is_not_ended_by_messages_for_others(wakeups, key):
    assert sleep(wakeups.wait_for_nodes(KEY, UNTIL, 1, GRACE, b"7"), lambda: say(wakeups, 0b1, b"7", key)) == (
        [UNTIL],
        (0, 0),
    )


def test_wait_for_nodes_is_not_ended_by_other_pushes(wakeups):
    waits = wakeups.wait_for_nodes(KEY, UNTIL, 1, GRACE, b"7")
    assert sleep(waits, lambda: say(wakeups, 0b1, b"7", kind=b"subscribe")) == ([UNTIL], (0, 0))


@pytest.mark.parametrize("push", [[], [[]], [None, {}], [b"7 " + KEY]])
def test_other_pushes_of_any_shape_are_ignored(wakeups, push):
    wakeups.take_in(push, Sender(0b1))
    assert sleep(wakeups.wait_for_nodes(KEY, UNTIL, 1, GRACE, b"7")) == ([UNTIL], (0, 0))


@pytest.mark.parametrize("shape", [[], [b"7 " + KEY], 7, None])
def test_malformed_message_is_the_nodes_fault(wakeups, shape):
    """Its link ends, as after any reply that is no RESP."""
    with pytest.raises(hiredis.ProtocolError):
        wakeups.take_in([b"message", b"redsync:wake:client-a", shape], Sender(0b1))
    assert sleep(wakeups.wait_for_nodes(KEY, UNTIL, 1, GRACE, b"7")) == ([UNTIL], (0, 0))


def test_name_with_blanks_is_parsed_whole(wakeups):
    key = b"client-a:1 redsync:a  name \r\n\xff"
    wakeups.subscribe(key)
    waits = wakeups.wait_for_nodes(key, UNTIL, 1, GRACE, b"7")
    assert sleep(waits, lambda: say(wakeups, 0b1, b"7", key)) == ([UNTIL], (1, 0b1))


# Duration.


def test_wait_for_nodes_waits_briefly_for_the_others_after_the_first(wakeups):
    waits = wakeups.wait_for_nodes(KEY, UNTIL, 3, GRACE, b"7")
    untils, came = sleep(waits, lambda: say(wakeups, 0b001, b"7"), lambda: say(wakeups, 0b010, b"7"))
    assert untils == [UNTIL, NOW + GRACE]
    assert came == (2, 0b011)


def test_grace_for_the_others_ends_with_the_sleep(wakeups):
    waits = wakeups.wait_for_nodes(KEY, NOW + GRACE / 2, 3, GRACE, b"7")
    assert sleep(waits, lambda: say(wakeups, 0b001, b"7"))[0] == [NOW + GRACE / 2] * 2


def test_wait_for_nodes_without_signals_ends_at_its_instant(wakeups):
    assert sleep(wakeups.wait_for_nodes(KEY, UNTIL, 2, GRACE, b"7")) == ([UNTIL], (0, 0))


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


# Turns to try again.


@pytest.fixture
def clock_now():
    return [NOW]


@pytest.fixture
def turns(clock_now):
    """Wake-ups of a transport with a clock set by hand."""
    return Wakeups(threading.Lock(), lambda: clock_now[0], lambda sleeper: None)


def wait_once(waits):
    """Return the sleeper and the instant of the next wait; None if the sleep is over."""
    return next(waits, None)


def test_turn_comes_when_its_pause_is_over(turns, clock_now):
    waits = turns.waits(Wait(UNTIL, retry_at=NOW + 0.2), Retry())
    _, until = wait_once(waits)
    assert until == NOW + 0.2
    clock_now[0] = until
    assert wait_once(waits) is None


def test_second_run_waits_for_the_first_and_is_called_when_that_is_answered(turns):
    first, second = Retry(), Retry()
    assert wait_once(turns.take_turn(first, NOW, UNTIL)) is None
    waits = turns.take_turn(second, NOW, UNTIL)
    sleeper, _ = wait_once(waits)
    assert sleeper is second
    assert not second.done
    turns.unsubscribe(first)
    assert second.done
    assert wait_once(waits) is None


def test_another_sleep_of_the_same_run_ends_its_turn(turns):
    first, second = Retry(), Retry()
    assert wait_once(turns.take_turn(first, NOW, UNTIL)) is None
    waits = turns.take_turn(second, NOW, UNTIL)
    wait_once(waits)
    turns.waits(Wait(UNTIL, key=KEY), first)
    assert second.done


def test_waiter_at_its_deadline_leaves_the_queue(turns, clock_now):
    wait_once(turns.take_turn(Retry(), NOW, UNTIL))
    late, next_one = Retry(), Retry()
    waits = turns.take_turn(late, NOW, NOW + 0.1)
    assert wait_once(waits) == (late, NOW + 0.1)
    following = turns.take_turn(next_one, NOW, UNTIL)
    wait_once(following)
    clock_now[0] = NOW + 0.1
    assert wait_once(waits) is None
    assert next_one.done, "it is the first now"
    assert wait_once(following)[1] > clock_now[0]


def test_interrupted_waiter_leaves_the_queue(turns):
    first, second, third = Retry(), Retry(), Retry()
    wait_once(turns.take_turn(first, NOW, UNTIL))
    waits = turns.take_turn(second, NOW, UNTIL)
    wait_once(waits)
    following = turns.take_turn(third, NOW, UNTIL)
    wait_once(following)
    waits.close()
    turns.unsubscribe(first)
    assert wait_once(following) is None


@pytest.mark.parametrize("ends_by", ["its time", "its turn", "an error"])
def test_next_run_proceeds_after_an_interruption_of_the_one_before_at_any_point(ends_by, clock_now, inject):
    """Nothing else may call it: in an outage one run tries at a time, the others sleep until they are called."""
    n, where = 0, "not tried yet"
    while where is not None:
        n += 1
        clock_now[0] = NOW
        turns = Wakeups(threading.Lock(), lambda: clock_now[0], lambda sleeper: None)
        first, second = Retry(), Retry()

        def retry(run, ready_at, until, turns=turns):
            """Take one turn, like a protocol run that then ends."""
            try:
                yield from turns.take_turn(run, ready_at, until)
            finally:
                turns.unsubscribe(run)

        waits, following = retry(first, NOW + 0.1, NOW + 0.2), retry(second, NOW + 0.1, UNTIL)
        wait_once(waits)
        _, until = wait_once(following)
        clock_now[0] = NOW + (0.1 if ends_by == "its turn" else 0.2)
        where = inject(n, waits.close if ends_by == "an error" else lambda waits=waits: wait_once(waits))
        waits.close()
        clock_now[0] = NOW + 1.3
        assert second.done or until <= clock_now[0], f"it is not called after an interruption at {where}"
    assert n > 3


def test_sleep_for_a_turn_ends_when_the_transport_is_closed(turns):
    """A closed transport lets no run sleep: one that looked again at once would spin."""
    wait_once(turns.take_turn(Retry(), NOW, UNTIL))
    waits = turns.take_turn(Retry(), NOW, UNTIL)
    assert wait_once(waits) is not None
    assert wait_once(waits) is None


@pytest.fixture
def life(make_lasting):
    """A client for threads in this process."""
    return make_lasting().runner.life


def take_turn(life, retry):
    """Sleep for a run's turn, in the calling thread."""
    for sleeper, until in life.wakeups.take_turn(retry, clock(), clock() + 30):
        life.sleep(sleeper, until)


def test_thread_sleeps_until_its_turn(life):
    first, second = Retry(), Retry()
    take_turn(life, first)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(take_turn, life, second)
        life.wakeups.unsubscribe(first)
        waiting.result(20)
