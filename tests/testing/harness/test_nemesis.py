"""The nemesis carries out the plan: each fault on its target, and never early."""

import time
from contextlib import ExitStack

import pytest

from redsync.testing.harness.crew import RunFailedError
from redsync.testing.harness.journal import Journal, read
from redsync.testing.harness.nemesis import Fault, Nemesis
from redsync.testing.proxy import FaultProxy
from tests.soak.plan import faults_of, plan


class Recorder:
    """Stands in for nodes, a proxy or the crew: records the calls, and when."""

    def __init__(self, seconds=0.0):
        self.calls, self.times, self._seconds = [], [], seconds

    def __getattr__(self, name):
        def call(*args, **_):
            if name != "check":
                self.calls.append((name, *args))
                self.times.append(time.monotonic())
                time.sleep(self._seconds)

        return call


@pytest.fixture
def log(tmp_path):
    return tmp_path / "nemesis.journal"


def test_nemesis_does_everything_in_order(log):
    nodes, crew, proxy = Recorder(), Recorder(), Recorder()
    faults = [
        Fault(0.0, "kill", (1,)),
        Fault(0.01, "stop_client", (3,)),
        Fault(0.02, "restart", (1,)),
        Fault(0.03, "delay", (2, 4), 0.5),
        Fault(0.04, "drop_replies", (2, 4)),
        Fault(0.05, "heal", (2, 4)),
        Fault(0.06, "continue_client", (3,)),
    ]
    nemesis = Nemesis(nodes, crew, {(2, 4): proxy}, Journal(log))
    nemesis.run(faults, 0.1)
    assert nodes.calls == [("kill", 1), ("restart", 1)]
    assert crew.calls == [("stop", 3), ("go_on", 3)]
    assert proxy.calls == [("heal",)]
    assert (proxy.delay, proxy.drop_replies) == (0.5, True)
    assert [done.fault for done in nemesis.done] == faults
    assert all(done.before <= done.after for done in nemesis.done)
    assert [line["event"] for line in read(log)] == [fault.action for fault in faults]


def test_nemesis_postpones_faults_after_a_slow_one():
    nodes = Recorder(seconds=0.2)
    nemesis = Nemesis(nodes, Recorder())
    nemesis.run([Fault(0.0, "kill", (0,)), Fault(0.1, "restart", (0,)), Fault(0.15, "pause", (1,))], 0.2)
    first, second, third = nodes.times
    assert second - first >= 0.3
    assert third - second >= 0.25
    assert nemesis.late >= 0.4


def test_nemesis_stops_when_a_client_ended_by_itself():
    class Broken(Recorder):
        def check(self):
            raise RunFailedError("client 0 ended by itself")

    nodes = Recorder()
    with pytest.raises(RunFailedError):
        Nemesis(nodes, Broken()).run([Fault(0.0, "kill", (0,)), Fault(9.0, "restart", (0,))], 10.0)
    assert nodes.calls == [("kill", 0)]


def test_nemesis_knows_every_action(redsync_nodes):
    nodes = Recorder()
    nodes.ports = redsync_nodes.ports
    faults = {fault.action: fault._replace(at=0.0) for fault in faults_of(plan(1, 300.0))}
    with ExitStack() as stack:
        targets = {fault.target for fault in faults.values() if len(fault.target) == 2}
        proxies = {target: stack.enter_context(FaultProxy(1)) for target in targets}
        Nemesis(nodes, Recorder(), proxies).run(faults.values(), 0.0)
    assert len(faults) > 10


def test_nemesis_refuses_an_unknown_action():
    with FaultProxy(1) as proxy, pytest.raises(AssertionError, match="no switch 'blackhoel'"):
        Nemesis(Recorder(), Recorder(), {(0, 0): proxy}).run([Fault(0.0, "blackhoel", (0, 0))], 0.0)
