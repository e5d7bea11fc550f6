"""Local queues: only the first waiters may go; the others follow in order, one for each that leaves."""

import math

import pytest

from redsync._core.effects import Signal, Wait, Wakeup
from redsync._core.local_queues import LIMIT, RETRIERS, RETRIES, LocalQueues
from tests.support.injection import inject_at_calls

X, Y = b"redsync:x", b"redsync:y"


def names(*numbers):
    return [b"%d" % number for number in numbers]


@pytest.fixture
def queues():
    return LocalQueues()


@pytest.fixture
def full(queues):
    """Queues, one with three more waiters than may go."""
    for waiter in names(*range(LIMIT + 3)):
        queues.enter(X, waiter)
    return queues


def leave(queues, queue, waiter):
    """Leave a queue; return which waiters that wakes."""
    effects = list(queues.leave_queues(waiter, queue))
    assert all(isinstance(effect, Signal) for effect in effects)
    return [effect.key for effect in effects]


def test_the_first_may_go_and_the_others_may_not(queues):
    entered = [queues.enter(X, waiter) for waiter in names(*range(LIMIT + 3))]
    assert entered == [True] * LIMIT + [False] * 3
    assert [queues.may_go(X, waiter) for waiter in names(*range(LIMIT + 3))] == entered


def test_waiter_that_gives_up_lets_no_other_in_before_its_turn(full):
    leave(full, X, b"%d" % (LIMIT + 1))
    assert [full.may_go(X, waiter) for waiter in names(LIMIT, LIMIT + 2)] == [False, False]
    assert leave(full, X, b"0") == names(LIMIT)


def test_newcomer_is_behind_earlier_waiters(full):
    leave(full, X, b"0")
    assert not full.enter(X, b"new")
    assert [leave(full, X, waiter) for waiter in names(1, 2, 3)] == [
        *([n] for n in names(LIMIT + 1, LIMIT + 2)),
        [b"new"],
    ]


def test_queues_are_independent(full):
    assert full.enter(Y, b"0")
    assert leave(full, Y, b"0") == leave(full, Y, b"0") == []
    assert full.may_go(X, b"0")


@pytest.mark.parametrize("point", range(1, 12))
def test_leave_interrupted_at_any_point_has_left_and_wakes_the_next(full, point):
    full.enter(Y, b"0")
    woken = []
    inject_at_calls(point, lambda: woken.extend(each.key for each in full.leave_queues(b"0", Y, X)))
    assert woken[-1:] == names(LIMIT)
    assert not full.may_go(X, b"0")
    assert (full._queues.keys(), full.without_quorum.keys()) == ({X}, {X})


def test_empty_queue_leaves_nothing_behind(full):
    full.note(X, 5.0)
    for waiter in names(*range(LIMIT + 3)):
        leave(full, X, waiter)
    assert (full._queues, full.without_quorum) == ({}, {})
    full.note(X, 6.0)
    assert full.without_quorum == {}


def test_waiters_know_whether_the_first_find_a_quorum(full):
    assert full.without_quorum == {X: math.inf}, "none has an answer"
    full.note(X, 5.0)
    full.note(X, 6.0)
    assert full.without_quorum == {X: 6.0}
    full.note(X, None)
    assert X not in full.without_quorum


# Waiting.


def test_waiter_sleeps_until_its_turn_and_looks_by_itself_from_time_to_time(full):
    """An interruption may have lost its wake-up."""
    waiter = b"%d" % LIMIT
    steps = full.wait_turn(X, waiter, 1000.0, 1050.0)
    first = next(steps)
    assert (first.until, first.key, first.unless()) == (1030.0, waiter, False)
    second = steps.send(Wakeup(1030.0, 0))
    assert second.until == 1050.0, "and no longer than asked"
    leave(full, X, b"0")
    assert second.unless()
    with pytest.raises(StopIteration) as end:
        steps.send(Wakeup(1031.0, 1))
    assert end.value.value == 1031.0


# Retries.


def retry(queues, waiter, failures=1):
    """Begin to wait for another try; return the steps, at the end of their pause."""
    steps = queues.retry(waiter, failures, 0.5, 1000.0, 1060.0)
    pause = next(steps)
    assert isinstance(pause, Wait)
    assert pause.key is None
    return steps, pause


def go_on(steps, at):
    """End a sleep; return the signals that follow, and whether the waiter tries again."""
    signals, reply = [], Wakeup(at, 0)
    while True:
        try:
            effect = steps.send(reply)
        except StopIteration:
            return signals, True
        if isinstance(effect, Wait):
            return signals, False
        signals.append(effect.key)
        reply = None


def test_no_more_than_the_limit_try_again_and_each_answered_one_lets_the_next_try(queues):
    trying = [b"%d" % n for n in range(RETRIERS + 2) if go_on(retry(queues, b"%d" % n)[0], 1000.1)[1]]
    assert trying == names(*range(RETRIERS))
    assert [leave(queues, RETRIES, waiter) for waiter in names(7, 3)] == [names(RETRIERS), names(RETRIERS + 1)]


def test_waiter_that_fails_again_keeps_its_turn_for_its_pause_and_then_goes_to_the_end(queues):
    for n in range(RETRIERS + 2):
        go_on(retry(queues, b"%d" % n)[0], 1000.1)
    steps, pause = retry(queues, b"0", 2)
    assert not queues.may_go(RETRIES, b"%d" % RETRIERS)
    assert go_on(steps, pause.until) == (names(RETRIERS), False)
    leave(queues, RETRIES, b"1")
    assert queues.may_go(RETRIES, b"%d" % (RETRIERS + 1))
    assert not queues.may_go(RETRIES, b"0")


def test_waiter_whose_time_is_over_tries_once_more_before_its_turn(queues):
    for n in range(RETRIERS):
        queues.enter(RETRIES, b"%d" % n)
    steps, pause = retry(queues, b"late")
    assert not go_on(steps, pause.until)[1]
    assert go_on(steps, 1060.0) == ([], True)
