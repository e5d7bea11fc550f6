"""The count-down latch with all faults, some runs by seed; `make simulate KIND=latch` makes more of them."""

import pytest

from redsync.testing.simulator.runs import simulate

PER_TEST = 15


@pytest.mark.parametrize("first", range(0, 60, PER_TEST))
def test_latch_keeps_every_promise_in_runs_by_seed(first):
    for seed in range(first, first + PER_TEST):
        simulate(seed, kind="latch")  # its error says how to replay it


def test_same_seed_gives_same_trace_of_latches():
    first, second = (simulate(1003, kind="latch", traced=True).trace for _ in range(2))
    assert first == second
    assert first != simulate(1004, kind="latch", traced=True).trace
    assert "latch_exchange" in first
    assert "how=count down" in first


def test_what_all_nodes_have_forgotten_may_come_back_with_a_command_that_was_under_way_for_as_long():
    """Seed 1004446: nodes keep the latch for 3.9 s, and a command with an old state arrives after 4.1 s."""
    simulate(1004446, kind="latch")
