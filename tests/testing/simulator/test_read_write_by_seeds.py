"""The read-write lock with all faults, some runs by seed; `make simulate KIND=read-write` makes more of them."""

import pytest

from redsync.testing.simulator.runs import simulate

PER_TEST = 15


@pytest.mark.parametrize("first", range(0, 60, PER_TEST))
def test_read_write_lock_keeps_every_promise_in_runs_by_seed(first):
    for seed in range(first, first + PER_TEST):
        simulate(seed, kind="read-write")  # its error says how to replay it


def test_same_seed_gives_same_trace_of_readers_and_writers():
    first, second = (simulate(1003, kind="read-write", traced=True).trace for _ in range(2))
    assert first == second
    assert first != simulate(1004, kind="read-write", traced=True).trace


def test_workers_do_all_that_can_be_done_with_both_locks():
    trace = "".join(simulate(seed, kind="read-write", traced=True).trace for seed in range(1000, 1010))
    ways = ["acquire", "enter", "nest", "leave", "downgrade", "read inside", "upgrade"]
    said = [*(f"how={way} " for way in ways), " refused ", " looked ", " extended ", " cancelled ", " leaves "]
    assert [words for words in said if words not in trace] == []
    assert "mode=read count=2" in trace
    assert "mode=write count=2" in trace
