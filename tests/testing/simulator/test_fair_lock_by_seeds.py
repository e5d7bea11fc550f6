"""Runs of the fair lock by seeds that found something once."""

from redsync.testing.simulator.runs import simulate


def test_fair_lock_of_four_nodes_is_not_stuck_because_they_drew_different_tickets():
    """Two of them named one head and two another, for as long as both asked."""
    simulate(2001725, kind="fair")


def test_who_left_the_queue_draws_its_ticket_anew():
    """It took the one that it would have got before, and overtook who had finished queueing in between."""
    simulate(2018814, kind="fair")


def test_client_with_a_slow_clock_takes_long_to_give_up_a_silent_connection():
    """Ten seconds by its clock; the node had forgotten meanwhile, and waited for that client to be asked for long."""
    simulate(2098523, kind="fair")
