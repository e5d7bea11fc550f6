"""Every kind with all faults, some runs by seed; `make simulate SEEDS=100000 KIND=fair` makes more of them."""

import pytest

from redsync.testing.simulator.runs import simulate
from redsync.testing.simulator.workload import SIMULATED
from tests.support.sweeps import swept

FEW, PER_TEST = 2, 5
SEEDS = {"lock": 200}
"""The number of runs of each kind in the sweeps; 60 for the others."""

MORE = [
    (kind, range(first, first + PER_TEST)) for kind in SIMULATED for first in range(FEW, SEEDS.get(kind, 60), PER_TEST)
]


@pytest.mark.parametrize(("kind", "seeds"), [(kind, range(FEW)) for kind in SIMULATED] + swept(*MORE), ids=str)
def test_promises_are_kept_in_runs_by_seed(kind, seeds):
    for seed in seeds:
        simulate(seed, kind=kind)  # its error says how to replay it


@pytest.mark.parametrize(
    "kind", ["semaphore", "latch", *swept(*sorted(set(SIMULATED) - {"lock", "semaphore", "latch"}))]
)
def test_same_seed_gives_same_trace(kind):
    """The lock's is compared under another hash seed, too: `test_lock_by_seeds.py`."""
    first, second = (simulate(1003, kind=kind, traced=True).trace for _ in range(2))
    assert first == second
