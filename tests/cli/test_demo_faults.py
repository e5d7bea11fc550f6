"""The demo's faults: never more than a minority of nodes is out, and in the end none is."""

import random

import pytest

from redsync.cli.demo_faults import FaultPlan, plan


class Nodes:
    """Stands for LocalNodes: records the calls."""

    def __init__(self):
        self.done = []

    def __getattr__(self, action):
        return lambda node: self.done.append((action, node))


@pytest.mark.parametrize("nodes", range(1, 10))
def test_plan_never_harms_more_than_a_minority_and_repairs_all(nodes):
    for seed in range(20):
        faults = plan(12.0, nodes, random.Random(seed))
        assert faults == sorted(faults)
        out, most = set(), 0
        for fault in faults:
            assert 0 <= fault.node < nodes
            (out.add if fault.harms else out.remove)(fault.node)
            most = max(most, len(out))
        assert out == set()
        assert most == min((nodes - 1) // 2, 2)


def test_plan_follows_the_length_of_the_run():
    faults = plan(20.0, 5, random.Random(1))
    assert [(fault.at, fault.action) for fault in faults] == [
        (5.0, "kill"), (8.0, "pause"), (10.0, "restart"), (13.0, "resume"),
    ]  # fmt: skip


def test_plan_repeats_with_its_seed():
    assert plan(12.0, 5, random.Random(3)) == plan(12.0, 5, random.Random(3))


def test_faults_are_injected_when_due_and_describe_themselves():
    nodes = Nodes()
    killed, paused, restarted, resumed = faults = plan(10.0, 5, random.Random(1))
    carried = FaultPlan(nodes, faults)
    assert carried.inject(2.4) == []
    assert carried.next_at == 2.5
    assert carried.inject(2.5) == [killed]
    assert carried.marks() == {killed.node: "killed"}
    assert carried.inject(4.5) == [paused]
    assert carried.marks() == {killed.node: "killed", paused.node: "hung"}
    assert carried.inject(99.0) == [restarted, resumed]
    assert carried.marks() == {}
    assert carried.next_at == float("inf")
    assert carried.injected == faults
    first, second = carried.outages
    assert [(first.node, first.what), (second.node, second.what)] == [(killed.node, "killed"), (paused.node, "hung")]
    assert first.begin < second.begin < first.end < second.end
    assert nodes.done == [(fault.action, fault.node) for fault in faults]
    assert [str(fault) for fault in faults[:2]] == [
        f"node {killed.node + 1} is killed (SIGKILL)",
        f"node {paused.node + 1} hangs (SIGSTOP)",
    ]
    assert [bool(fault.story) for fault in faults] == [True, True, False, False]
