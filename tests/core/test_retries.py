"""Turns after an outage: one waiter asks at first, then more with each answer, in order, and none is forgotten."""

import math

import pytest

from redsync._core.retries import RetryQueue

PACE, WIDEST, LONGEST_TRY = 0.01, 256, 1.0


class Crowd:
    """Waiters of one queue, driven by hand: each looks when it is woken or its time has come, as in drivers."""

    def __init__(self):
        self.now = 100.0
        self.woken = []
        self.queue = RetryQueue(self.woken.append)
        self.asleep = {}
        self.went = []

    def join(self, *waiters, ready_in=0.0):
        for waiter in waiters:
            self.queue.join(waiter, self.now + ready_in, self.now)
            self.asleep[waiter] = self.now
        self.look()

    def look(self):
        """Let all waiters look that have to at this instant."""
        while due := [waiter for waiter, at in self.asleep.items() if at <= self.now or waiter in self.woken]:
            for waiter in due:
                if waiter in self.woken:
                    self.woken.remove(waiter)
                at = self.queue.look(waiter, self.now)
                if at is None:
                    del self.asleep[waiter]
                    self.went.append(waiter)
                else:
                    assert at > self.now, "it would spin"
                    self.asleep[waiter] = at

    def sleep(self, seconds):
        """Let time pass; each waiter looks as soon as it has to."""
        end = self.now + seconds
        while (soonest := min(self.asleep.values(), default=math.inf)) <= end:
            self.now = max(soonest, self.now)
            self.look()
        self.now = end

    def answered(self, *waiters):
        for waiter in waiters:
            self.queue.end(waiter, self.now)
        self.look()

    def give_up(self, waiter):
        self.queue.give_up(waiter, self.now)
        self.asleep.pop(waiter, None)
        self.look()

    def mute(self, *waiters, ready_in=0.0):
        self.join(*waiters, ready_in=ready_in)

    def gone(self):
        """Return the waiters that have gone since the last call."""
        went, self.went = self.went, []
        return went


@pytest.fixture
def crowd():
    return Crowd()


def test_lone_waiter_goes_when_its_pause_is_over(crowd):
    crowd.join("a", ready_in=0.2)
    crowd.sleep(0.199)
    assert crowd.gone() == []
    crowd.sleep(0.002)
    assert crowd.gone() == ["a"]


def test_one_waiter_at_a_time_goes_in_an_outage_each_in_its_turn(crowd):
    crowd.join("a", "b", "c")
    for waiter in "abcabca":
        assert crowd.gone() == [waiter]
        crowd.sleep(0.25)
        assert crowd.gone() == [], "the first has no answer yet"
        crowd.mute(waiter)
        assert crowd.gone() == []
        crowd.sleep(PACE * 0.9)
        assert crowd.gone() == []
        crowd.sleep(PACE * 0.2)


def test_tries_in_an_outage_are_a_hundred_a_second_at_most(crowd):
    crowd.join(*range(500))
    tries = 0
    for _ in range(2000):
        for waiter in crowd.gone():
            tries += 1
            crowd.mute(waiter)
        crowd.sleep(0.001)
    assert 150 <= tries <= 201


def test_number_of_tries_under_way_doubles_with_each_round_trip(crowd):
    crowd.join(*range(1200))
    batches = []
    while batch := crowd.gone():
        batches.append(len(batch))
        crowd.sleep(0.01)
        crowd.answered(*batch)
    assert batches[:10] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 256]
    assert max(batches) == WIDEST
    assert sum(batches) == 1200


def test_waiters_go_in_order_of_arrival(crowd):
    crowd.join(*range(1000))
    order = []
    while batch := crowd.gone():
        order += batch
        crowd.sleep(0.01)
        crowd.answered(*batch)
    assert order == list(range(1000))


def test_tries_without_an_answer_narrow_the_window_and_hold_up_all_waiters(crowd):
    crowd.join(*range(100))
    for _ in range(4):
        batch = crowd.gone()
        crowd.answered(*batch)
    batch = crowd.gone()
    assert len(batch) == 16
    crowd.mute(*batch)
    assert crowd.gone() == []
    assert crowd.queue.window == 1
    crowd.sleep(PACE * 1.01)
    assert len(crowd.gone()) == 1


def test_waiter_that_can_not_succeed_does_not_keep_others_back(crowd):
    crowd.join("never", *range(50))
    served = []
    for _ in range(400):
        for waiter in crowd.gone():
            if waiter == "never":
                crowd.mute(waiter)
            else:
                served.append(waiter)
                crowd.answered(waiter)
        crowd.sleep(0.01)
    assert served == list(range(50))


def test_first_waiter_that_gives_up_makes_way(crowd):
    crowd.join("a", "b", ready_in=0.5)
    crowd.give_up("a")
    crowd.sleep(0.51)
    assert crowd.gone() == ["b"]


def test_waiter_that_gives_up_in_the_middle_changes_nothing(crowd):
    crowd.join("a", "b", "c")
    crowd.give_up("b")
    crowd.answered("a")
    assert crowd.gone() == ["a", "c"]


def test_giving_up_or_ending_twice_does_nothing(crowd):
    crowd.join("a", "b")
    for _ in range(2):
        crowd.answered("a")
        crowd.give_up("a")
    assert crowd.queue.window == 2
    assert crowd.gone() == ["a", "b"]


def test_turn_that_is_never_ended_holds_up_others_for_a_second_only(crowd):
    crowd.join("lost", "b")
    crowd.sleep(LONGEST_TRY * 0.99)
    assert crowd.gone() == ["lost"]
    crowd.sleep(LONGEST_TRY * 0.02)
    assert crowd.gone() == ["b"]
    crowd.answered("lost")
    assert crowd.queue.window == 1, "its turn was over"


def test_next_outage_begins_with_one_try_again(crowd):
    crowd.join(*range(20))
    while batch := crowd.gone():
        crowd.answered(*batch)
    crowd.join(*range(20))
    assert len(crowd.gone()) == 1


@pytest.mark.parametrize("struck", [0, 1, 2])
def test_waiters_go_even_if_an_interruption_strikes_while_one_is_let_go(struck):
    crowd = Crowd()
    crowd.join("a", "b", "c", "d")
    calls = iter(range(100))

    def wake(waiter):
        crowd.woken.append(waiter)
        if next(calls) == struck:
            raise KeyboardInterrupt

    crowd.queue._wake = wake
    with pytest.raises(KeyboardInterrupt):
        crowd.answered("a")
    crowd.sleep(5 * LONGEST_TRY)
    assert crowd.gone() == ["a", "b", "c", "d"]
