"""Runs of the read-write lock by seed: workers use all its possibilities."""

import pytest

from redsync.testing.simulator.runs import simulate


@pytest.mark.sweep
def test_workers_use_both_locks_in_all_ways():
    trace = "".join(simulate(seed, kind="read-write", traced=True).trace for seed in range(1000, 1010))
    ways = ["acquire", "enter", "nest", "leave", "downgrade", "read inside", "upgrade"]
    said = [*(f"how={way} " for way in ways), " refused ", " found ", " extended ", " cancelled ", " leaves "]
    assert [words for words in said if words not in trace] == []
    assert "mode=read count=2" in trace
    assert "mode=write count=2" in trace
