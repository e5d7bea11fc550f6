"""Runs of the lock by seed: the same seed gives the same trace, in any process."""

import os
import subprocess
import sys

from redsync.testing.simulator.runs import simulate


def test_same_seed_gives_same_trace_under_another_hash_seed():
    program = "import sys; from redsync.testing.simulator.runs import simulate\n"
    program += "sys.stdout.write(simulate(1003, traced=True).trace)"
    traces = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
        ).stdout
        for hash_seed in ("0", "4242")
    }
    assert traces == {simulate(1003, traced=True).trace.encode()}
    assert traces != {simulate(1004, traced=True).trace.encode()}
