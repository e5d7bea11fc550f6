"""The fair lock with all faults, some runs by seed; `make simulate SEEDS=100000 KIND=fair` makes more of them."""

import pytest

from redsync.testing.simulator.runs import simulate

PER_TEST = 15


@pytest.mark.parametrize("first", range(0, 60, PER_TEST))
def test_fair_lock_keeps_every_promise_in_runs_by_seed(first):
    for seed in range(first, first + PER_TEST):
        simulate(seed, kind="fair")  # its error says how to replay it


def test_fair_lock_of_four_nodes_is_not_stuck_because_they_drew_different_tickets():
    """Two of them named one head and two another, for as long as both asked."""
    simulate(2001725, kind="fair")


def test_who_left_the_queue_draws_its_ticket_anew():
    """It took the one that it would have got before, and overtook who had finished queueing in between."""
    simulate(2018814, kind="fair")


def test_client_with_a_slow_clock_takes_long_to_give_up_a_silent_connection():
    """Ten seconds by its clock; the node had forgotten meanwhile, and waited for that client to be asked for long."""
    simulate(2098523, kind="fair")


def test_spin_lock_keeps_every_promise_in_runs_by_seed():
    for seed in range(15):
        simulate(seed, kind="spin")


@pytest.mark.parametrize("kind", ["fair", "spin"])
def test_same_seed_gives_same_trace_of_other_kinds(kind):
    first, second = (simulate(1003, kind=kind, traced=True).trace for _ in range(2))
    assert first == second
    assert first != simulate(1003, traced=True).trace
    assert ("fair_lock_acquire" in first) == (kind == "fair")
