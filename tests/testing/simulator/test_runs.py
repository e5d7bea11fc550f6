"""Runs by seed: how the seed shapes them, and that long ones test what short ones can't."""

import re

import pytest

from redsync.testing.simulator.runs import simulate
from redsync.testing.simulator.workload import SIMULATED


def owners(trace: str, who: str) -> set[str]:
    """Return the owners as which a worker acquired, by the trace."""
    return set(re.findall(rf"{who} acquired .* owner=(\S+)", trace))


@pytest.mark.sweep
def test_half_of_other_seeds_have_owners_that_are_reused():
    assert len(owners(simulate(4, traced=True).trace, "worker-1 on a")) > 3, "first seeds use a new owner for each turn"
    counts = [len(owners(simulate(seed, traced=True).trace, "worker-1 on a")) for seed in range(1000, 1020)]
    reused = sum(count == 1 for count in counts)
    assert 4 <= reused <= 16, counts


@pytest.mark.sweep
@pytest.mark.parametrize("kind", SIMULATED)
def test_long_run_keeps_every_promise(kind):
    trace = simulate(1000, kind=kind, traced=True, long=True).trace
    assert re.search(r"no answer for 1\d s", trace), "a client abandons a connection in it"


@pytest.mark.sweep
def test_long_runs_have_commands_that_arrive_over_abandoned_connections():
    trace = "".join(simulate(seed, traced=True, long=True).trace for seed in range(1000, 1004))
    assert re.search(r"\(a stray\): lock_(release|abandon)", trace)
    assert re.search(r"take up to (30|60|120)\.000 s longer", trace)


@pytest.mark.sweep
def test_same_seed_gives_same_long_trace():
    first, second = (simulate(1002, traced=True, long=True).trace for _ in range(2))
    assert first == second
    assert first != simulate(1002, traced=True).trace
