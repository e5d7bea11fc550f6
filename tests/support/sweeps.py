"""Cases of a parametrized test that run only in `make test-all`, and seeds."""

import os
import random

import pytest


def new_seed():
    """Return a seed that is printed with a failure; `REDSYNC_TEST_SEED` repeats a run."""
    seed = int(os.environ.get("REDSYNC_TEST_SEED") or random.SystemRandom().randrange(1_000_000))
    print(f"REDSYNC_TEST_SEED={seed}")
    return seed


def swept(*cases):
    """Mark cases as a sweep; a tuple has one value for each parameter."""
    return [pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.sweep) for case in cases]
