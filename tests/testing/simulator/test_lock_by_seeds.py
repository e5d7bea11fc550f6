"""Runs of the lock by seed: the same seed gives the same trace; seeds that found something once."""

import os
import subprocess
import sys

import pytest

from redsync.testing.simulator.runs import simulate


def test_same_seed_gives_same_trace_under_another_hash_seed():
    program = "import sys; from redsync.testing.simulator.runs import simulate\n"
    program += "sys.stdout.write(simulate(1003, traced=True).trace)"
    traces = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
        ).stdout
        for hash_seed in ("0", "4242")
    }
    assert traces == {simulate(1003, traced=True).trace.encode()}
    assert traces != {simulate(1004, traced=True).trace.encode()}


@pytest.mark.parametrize("seed", [1013974, 1044192])
def test_waiter_whose_clock_was_set_back_and_runs_slow_is_waited_for(seed):
    """A checker once took a clock that had caught up unseen for one that had been right all the time."""
    simulate(seed)
