"""The soak's modules import each other as `tests.soak...`, here and in the client processes."""

import os
import random
import sys
from pathlib import Path

import pytest

ROOT = str(Path(__file__).parents[2])
if ROOT not in sys.path:  # `python -m pytest` puts it there, `pytest` does not
    sys.path.append(ROOT)


@pytest.fixture
def soak_seed():
    """What all choices of a run are made from; `REDSYNC_TEST_SEED` repeats them."""
    return int(os.environ.get("REDSYNC_TEST_SEED") or random.SystemRandom().randrange(1_000_000))
