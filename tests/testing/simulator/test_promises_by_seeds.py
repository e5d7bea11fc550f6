"""Every kind with all faults, some runs by seed; `make simulate SEEDS=100000 KIND=fair` makes more of them."""

import pytest

from redsync.testing.simulator.client import KINDS
from redsync.testing.simulator.runs import simulate
from tests.support.sweeps import swept

PER_TEST = 5
SEEDS = {"lock": 200, "spin": 20}
"""How many runs of each kind the sweeps make; 60 of the others."""

CASES = [(kind, first) for kind in KINDS for first in range(0, SEEDS.get(kind, 60), PER_TEST)]


@pytest.mark.parametrize(
    ("kind", "first"), [case for case in CASES if not case[1]] + swept(*(case for case in CASES if case[1]))
)
def test_promises_are_kept_in_runs_by_seed(kind, first):
    for seed in range(first, first + PER_TEST):
        simulate(seed, kind=kind)  # its error says how to replay it


@pytest.mark.parametrize(
    "kind", ["lock", "semaphore", "latch", *swept(*sorted(set(KINDS) - {"lock", "semaphore", "latch"}))]
)
def test_same_seed_gives_same_trace(kind):
    first, second = (simulate(1003, kind=kind, traced=True).trace for _ in range(2))
    assert first == second
    assert first != simulate(1004, kind=kind, traced=True).trace
