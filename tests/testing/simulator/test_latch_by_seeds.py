"""Runs of the count-down latch by seeds that found something once."""

from redsync.testing.simulator.runs import simulate


def test_what_all_nodes_have_forgotten_may_come_back_with_a_command_that_was_under_way_for_as_long():
    """Seed 1004446: nodes keep the latch for 3.9 s, and a command with an old state arrives after 4.1 s."""
    simulate(1004446, kind="latch")
