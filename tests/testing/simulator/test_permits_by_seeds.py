"""Runs of semaphore and rate limiter by seeds that found something once."""

import pytest

from redsync.testing.simulator.runs import simulate
from tests.support.sweeps import swept


@pytest.mark.parametrize(("kind", "seed"), [("limiter", 1018), *swept(("semaphore", 3222), ("limiter", 10094))])
def test_place_in_line_ends_with_its_waiter_on_nodes_that_were_hung_or_cut_off(kind, seed):
    """One had it from an undoing alone, another from one that it executed when its waiter had been served."""
    simulate(seed, kind=kind)


def test_time_until_room_is_told_by_what_others_have_asked_for():
    """Another client had asked for more allowance, so its permit lasted for longer than a new one would."""
    simulate(2917, kind="limiter")


@pytest.mark.parametrize("seed", [2060, *swept(2355)])
def test_books_of_a_node_whose_clock_was_set_back_are_not_looked_at(seed):
    """Keys that nobody had touched since their end were back, and others were not."""
    simulate(seed, kind="limiter")


@pytest.mark.parametrize("seed", [5000124, 20003682, 30001088, *swept(5001565, 5002175)])
def test_time_until_room_is_true(seed):
    """Who waited slept for too long, behind the first or behind one who left; a node was not waited for; one that had
    forgotten was believed; each slot was free on a quorum, but not all of them on one.
    """
    simulate(seed, kind="limiter")


@pytest.mark.sweep
def test_waiter_whose_place_is_kept_for_longer_may_sleep_for_longer():
    simulate(1146, kind="limiter")


def test_watchdog_does_not_wait_for_first_connections_longer_than_rounds_do():
    """A permit of a short lease ended before the client had given up a node that was dark."""
    simulate(5001575, kind="semaphore")
