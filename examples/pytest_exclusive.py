"""pytest: tests that need the only printer there is run one at a time, in two workers of two runs.

Runs by itself, on throwaway servers; two runs in one directory stand for two machines of a build.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from redsync.testing import LocalNodes

CONFTEST = """
import pytest

from redsync import Client


@pytest.fixture(scope="session")
def locks():
    with Client.from_env() as client:
        yield client


@pytest.fixture
def printer(locks):
    with locks.get_lock("pytest:printer", timeout=3600) as hold:
        yield hold
"""

TESTS = """
import time
from pathlib import Path

import pytest


@pytest.mark.usefixtures("printer")
@pytest.mark.parametrize("page", range(6))
def test_prints(page):
    printer = Path("printer")
    printer.touch(exist_ok=False)  # an error if another test is at it
    time.sleep(0.05)
    printer.unlink()
"""


# The rest is the demonstration.


def main() -> None:
    with LocalNodes(3) as nodes, tempfile.TemporaryDirectory() as directory:
        Path(directory, "conftest.py").write_text(CONFTEST)
        Path(directory, "test_printer.py").write_text(TESTS)
        # These nodes are new, so nothing can have been forgotten.
        environment = {**os.environ, "REDSYNC_URLS": ",".join(nodes.urls), "REDSYNC_RESTART_GUARD": "0"}
        command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider"]
        runs = [
            subprocess.Popen(
                command,
                cwd=directory,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for _ in range(2)
        ]
        for number, run in enumerate(runs, 1):
            out, err = run.communicate()
            if run.returncode:
                # Only then: pytest-xdist interrupts its workers at their end, which may show there.
                sys.exit(out + err)
            print(f"run {number}: {out.splitlines()[-1].partition(' in ')[0]}")


if __name__ == "__main__":
    main()
