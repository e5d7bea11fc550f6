"""The soak's modules import each other as `tests.soak...`, here and in the client processes."""

import os
import random
import sys
from pathlib import Path

import pytest

ROOT = str(Path(__file__).parents[2])
if ROOT not in sys.path:  # `python -m pytest` adds it, `pytest` does not
    sys.path.append(ROOT)


@pytest.fixture
def soak_seed():
    """The seed of all choices of a run; `REDSYNC_TEST_SEED` repeats them."""
    return int(os.environ.get("REDSYNC_TEST_SEED") or random.SystemRandom().randrange(1_000_000))
