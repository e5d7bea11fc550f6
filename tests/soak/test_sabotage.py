"""Clients, faults and judges of the soak find a redsync that was broken on purpose."""

from itertools import count

import pytest

from redsync.testing.harness.nemesis import Fault
from tests.soak.run import Setting, soak

CLIENTS = 2


def restarts(nodes, begin, step):
    """Return the faults that kill nodes and restart them, one at a time, each for an instant."""
    times = count(begin, step)
    return [
        fault
        for node in nodes
        for fault in (Fault(next(times), "kill", (node,)), Fault(next(times), "restart", (node,)))
    ]


@pytest.mark.sweep
def test_judges_find_each_promise_that_clients_break(seed, tmp_path):
    setting = Setting(
        seed, tmp_path, ["lock:0", "lock:1"], CLIENTS, work="brief", restart_guard=0.0, sabotage="everything"
    )
    # Two clients that ask at once rarely get a node each. But a client that asks an empty node gets that one.
    evidence = soak(setting, restarts([0, 1, 2, 3, 4, 0, 1, 2], 0.2, 0.1), 2.0)
    broken = {violation.promise for violation in evidence.violations()}
    assert broken >= {"loss not told", "leak"}
    # Chance decides which of the witnesses sees two holders.
    assert broken & {"overlap", "overlap in the ledger", "lost updates"}


@pytest.mark.sweep
def test_judges_find_overlap_when_nodes_forget_without_a_guard(seed, tmp_path):
    # Two nodes remain that know of a claim that is not renewed meanwhile.
    faults = [fault for begin in (0.5, 2.5) for fault in restarts([0, 1, 2], begin, 0.1)]
    names = ["lock:0", "lock:1", "lock:2"]
    evidence = soak(Setting(seed, tmp_path, names, CLIENTS, work="leased", restart_guard=0.0), faults, 4.0)
    broken = {violation.promise for violation in evidence.violations()}
    assert "overlap" in broken


@pytest.mark.sweep
def test_judges_find_latches_that_open_before_all_was_counted_down(seed, tmp_path):
    names = ["lock:0", *(f"count_down_latch:{number}" for number in range(1, 6))]
    setting = Setting(seed, tmp_path, names, CLIENTS, work="brief", restart_guard=0.0, sabotage="open_early")
    assert "latch opened early" in {violation.promise for violation in soak(setting, [], 4.0).violations()}
