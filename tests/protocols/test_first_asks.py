"""The first ask of an acquire: for a claim alone, or a moment later for a place too, if the latest one met others."""

import pytest

from redsync.exceptions import QuorumError
from tests.support.toy_replies import SPLIT, busy, waiting_script, without_quorum, won

PLACE = "ask lock_acquire for a place"
ALONE = "ask lock_acquire"


def pause(toy):
    return "wait", toy.slept()


def test_acquire_after_one_that_waited_asks_for_a_place_at_once(toy):
    """Whichever object had to wait: programs make one for each acquisition."""
    toy.give_back(toy.acquire(*waiting_script(toy)))
    toy.give_back(toy.acquire(pause(toy), (PLACE, won(toy))))
    toy.give_back(toy.acquire((ALONE, won(toy))))


@pytest.mark.parametrize("timeout", [0.0, 0.3])
def test_acquire_after_one_that_was_refused_asks_for_a_place_at_once(toy, timeout):
    waiting = [(PLACE, busy(toy)), ("wait for wake-up", toy.slept()), (PLACE, busy(toy)), "tell lock_abandon, leave"]
    rest = waiting if timeout else ["tell lock_abandon"]
    assert toy.acquire((ALONE, busy(toy)), *rest, timeout=timeout) is None
    assert toy.acquire(pause(toy), (PLACE, won(toy)))


def test_acquire_with_one_try_asks_for_no_place(toy):
    toy.give_back(toy.acquire(*waiting_script(toy)))
    toy.give_back(toy.acquire((ALONE, won(toy)), timeout=0.0))


def test_acquire_after_a_split_vote_asks_for_a_place_at_once(toy):
    split = (ALONE, toy.answers(*SPLIT)), "tell lock_abandon", ("wait", toy.slept()), (PLACE, won(toy))
    toy.give_back(toy.acquire(*split))
    assert toy.acquire(pause(toy), (PLACE, won(toy)))


def test_acquire_without_a_quorum_tells_the_next_one_nothing(toy):
    with pytest.raises(QuorumError):
        toy.acquire((ALONE, without_quorum(toy)), timeout=0.0)
    toy.give_back(toy.acquire(*waiting_script(toy)))
    with pytest.raises(QuorumError):
        toy.acquire((ALONE, without_quorum(toy)), timeout=0.0)
    toy.give_back(toy.acquire(pause(toy), (PLACE, won(toy))))


def test_acquire_of_another_lock_asks_for_no_place(toy):
    toy.give_back(toy.acquire(*waiting_script(toy)))
    assert toy.acquire((ALONE, won(toy)), name="y")
