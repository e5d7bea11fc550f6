"""The soak behind a router: the kernel's own TCP, partitions that outlast connections, errors, older data.

`make soak MINUTES=30 NETWORK=1` runs it; without root or network namespaces it is skipped. The plan is tested without
either.
"""

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from tests.soak import report
from tests.soak.namespaces import why_not
from tests.soak.outages import CALM, LEASE, plan
from tests.soak.plan import faults_of
from tests.soak.run import Setting, soak
from tests.soak.troubles import CLIENTS, MINORITY

SECONDS = float(os.environ.get("REDSYNC_SOAK_SECONDS") or 60)
NAMES = ["lock:0", "lock:1", "fair_lock:2", "lock:3", "fenced_lock:4", "fair_lock:5"]
"""One thread of each of two clients contends for each: when something late arrives, the new holder often is the old
one.
"""


@pytest.mark.sweep
@pytest.mark.timeout(SECONDS + 240)
@pytest.mark.skipif("REDSYNC_SOAK_NETWORK" not in os.environ, reason="make soak NETWORK=1 runs it")
def test_promises_hold_behind_a_router_that_drops_packets(seed):
    if reason := why_not():
        pytest.skip(reason)
    directory = Path(tempfile.mkdtemp(prefix="redsync-soak-"))  # stays if anything is wrong
    print(
        f"\nto repeat: REDSYNC_TEST_SEED={seed} make soak NETWORK=1 MINUTES={SECONDS / 60:g}\nevidence: {directory}",
        flush=True,
    )
    troubles = plan(seed, SECONDS)
    setting = Setting(seed, directory, NAMES, CLIENTS, work="steady", lease=LEASE, network=True)
    evidence = soak(setting, faults_of(troubles), SECONDS)
    violations = evidence.violations()
    print("\n".join(report.lines(evidence, troubles, violations, SECONDS)))
    assert not violations, f"redsync broke its promises; see above and {directory}"
    assert len(evidence.holds) > SECONDS / 4, "too little was done to prove anything: the machine may be too busy"
    shutil.rmtree(directory)


@pytest.mark.parametrize("seconds", [30.0, 60.0, 600.0])
def test_outages_are_over_some_time_before_the_end(seconds):
    for seed in range(30):
        assert all(0.0 < fault.at <= seconds - CALM for fault in faults_of(plan(seed, seconds)))


def test_no_more_than_a_minority_of_the_nodes_is_in_trouble():
    for seed in range(30):
        spans = [
            (part.faults[0].at, part.until)
            for trouble in plan(seed, 600.0)
            if trouble.kind.startswith("node ")
            for part in trouble.parts
        ]
        assert max(sum(begin <= at < end for begin, end in spans) for at, _ in spans) <= MINORITY


def test_every_kind_of_outage_comes_in_ten_minutes():
    kinds = {trouble.kind for trouble in plan(1, 600.0)}
    assert {"client cut off by the router", "node answers BUSY", "node restarts with older data"} <= kinds
    assert len(kinds) == 9


def test_partitions_outlast_connections():
    for seed in range(10):
        faults = faults_of(plan(seed, 600.0))
        cuts = {f.target: f.at for f in faults if f.action.startswith("cut")}
        lasted = [f.at - cuts[f.target] for f in faults if f.action == "mend" and f.at > cuts[f.target]]
        assert max(lasted) > 15.0
        assert max(lasted) <= 60.0
