"""The soak: everything that can fail does, for a minute or for as long as you like, and every promise is checked.

`make soak MINUTES=30` runs it for longer, with other choices each time; a seed makes the same choices again. The
choices of the schedule and the workers come from the seed alone; the machine decides races, so a failure may need some
repetitions.
"""

import os
import shutil
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from tests.soak.plan import faults_of, plan
from tests.soak.run import soak

SECONDS = float(os.environ.get("REDSYNC_SOAK_SECONDS") or 60)
KINDS = ("lock", "lock", "mutex", "mutex", "fenced_lock", "read_write_lock", "semaphore")
NAMES = [f"{kind}:{number}" for number, kind in enumerate(KINDS)]


@pytest.mark.sweep
@pytest.mark.timeout(SECONDS + 180)
def test_promises_hold_while_nodes_connections_and_clients_fail(seed):
    directory = Path(tempfile.mkdtemp(prefix="redsync-soak-"))  # stays if anything is wrong
    chosen = f"REDSYNC_TEST_SEED={seed} REDSYNC_SOAK_SECONDS={SECONDS:g}"
    replay = f"{chosen} python -m pytest -s tests/soak/test_soak.py"
    print(f"\nto repeat: {replay}\nevidence: {directory}", flush=True)
    troubles = plan(seed, SECONDS)
    evidence = soak(seed, directory, NAMES, faults_of(troubles), SECONDS)
    print(f"faults, postponed by {evidence.late:.1f} s: {dict(Counter(trouble.kind for trouble in troubles))}")
    print(f"{len(evidence.holds):,} holds; {dict(evidence.events)}")
    print(f"violations: {len(evidence.violations)}", *map(str, evidence.violations[:20]), sep="\n")
    assert not evidence.violations, f"redsync broke its promises; see above and {directory}"
    assert len(evidence.holds) > SECONDS, "too little was done to prove anything: the machine may be too busy"
    shutil.rmtree(directory)
