"""A redsync that was broken on purpose is found out, by the same clients, faults and judges as in the soak."""

from itertools import count

import pytest

from redsync.testing.harness.nemesis import Fault
from tests.soak.run import Setting, soak

CLIENTS = 2


def restarts(nodes, begin, step):
    """Return the faults that kill nodes and start them again, one at a time, each for an instant."""
    times = count(begin, step)
    return [
        fault
        for node in nodes
        for fault in (Fault(next(times), "kill", (node,)), Fault(next(times), "restart", (node,)))
    ]


@pytest.mark.sweep
def test_judges_find_each_promise_that_clients_break(soak_seed, tmp_path):
    print(f"REDSYNC_TEST_SEED={soak_seed}")
    setting = Setting(
        soak_seed, tmp_path, ["lock:0", "lock:1"], CLIENTS, work="brief", restart_guard=0.0, sabotage="everything"
    )
    # Two who ask at once hardly ever get a node each. But whoever asks an empty node gets that one.
    evidence = soak(setting, restarts([0, 1, 2, 3, 4, 0, 1, 2], 0.2, 0.1), 2.0)
    broken = {violation.promise for violation in evidence.violations()}
    assert broken >= {"loss not told", "leak"}
    # Which of the witnesses sees that two had it is up to chance.
    assert broken & {"overlap", "overlap in the ledger", "lost updates"}


@pytest.mark.sweep
def test_judges_find_overlap_when_nodes_forget_and_nobody_guards(soak_seed, tmp_path):
    print(f"REDSYNC_TEST_SEED={soak_seed}")
    # Of a claim that is not renewed meanwhile, two nodes are left that know it.
    faults = [fault for begin in (0.5, 2.5) for fault in restarts([0, 1, 2], begin, 0.1)]
    names = ["lock:0", "lock:1", "lock:2"]
    evidence = soak(Setting(soak_seed, tmp_path, names, CLIENTS, work="leased", restart_guard=0.0), faults, 4.0)
    broken = {violation.promise for violation in evidence.violations()}
    assert "overlap" in broken


@pytest.mark.sweep
def test_judges_find_latches_that_open_before_all_was_counted_down(soak_seed, tmp_path):
    print(f"REDSYNC_TEST_SEED={soak_seed}")
    names = ["lock:0", *(f"count_down_latch:{number}" for number in range(1, 6))]
    setting = Setting(soak_seed, tmp_path, names, CLIENTS, work="brief", restart_guard=0.0, sabotage="open_early")
    assert "latch opened early" in {violation.promise for violation in soak(setting, [], 4.0).violations()}
