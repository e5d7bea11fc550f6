"""The soak's modules import each other as `tests.soak...`, here and in the client processes.

The soak waits most of its minute. When much else is run, it runs beside that, in a pytest of its own, and its test only
waits for the outcome.
"""

import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = str(Path(__file__).parents[2])
if ROOT not in sys.path:  # `python -m pytest` puts it there, `pytest` does not
    sys.path.append(ROOT)

MODULE = str(Path(__file__).with_name("test_soak.py"))
MUCH = 1000  # tests

BESIDE = pytest.StashKey()


def pytest_collection_finish(session):
    if hasattr(session.config, "workerinput"):
        return  # one of several processes, so everything is beside something anyway
    soaks = [item for item in session.items if str(item.path) == MODULE]
    if soaks and len(session.items) > MUCH and not session.config.option.collectonly:
        said = tempfile.TemporaryFile(mode="w+")  # noqa: SIM115  # closed with the session
        command = [sys.executable, "-m", "pytest", "-s", "-q", "-p", "no:cacheprovider", MODULE]
        process = subprocess.Popen(command, cwd=ROOT, stdout=said, stderr=subprocess.STDOUT, start_new_session=True)
        session.config.stash[BESIDE] = process, said


def pytest_unconfigure(config):
    process, said = config.stash.get(BESIDE, (None, None))
    if process is not None:
        if process.poll() is None:
            process.terminate()  # it ends what it has started
        process.wait()
        said.close()


@pytest.fixture
def soak_beside(pytestconfig):
    """Wait for the soak that runs beside and return its exit status and what it said; None if there is none."""

    def outcome(patience):
        process, said = pytestconfig.stash[BESIDE]
        status = process.wait(patience)
        said.seek(0)
        return status, said.read()

    return outcome if BESIDE in pytestconfig.stash else None


@pytest.fixture
def soak_seed():
    """What all choices of a run are made from; `REDSYNC_TEST_SEED` repeats them."""
    return int(os.environ.get("REDSYNC_TEST_SEED") or random.SystemRandom().randrange(1_000_000))
