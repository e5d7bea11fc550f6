"""Mistakes planted in the use of nodes with replicas, each of which the checker of exclusion finds."""

from pathlib import Path

import pytest

from redsync._core.memory import elected
from redsync._drivers import any_maintenance, greetings, locators
from redsync._drivers.acknowledgements import wait_commands
from redsync._drivers.channels import pack
from redsync._drivers.dialects import Dialect
from redsync._drivers.locators import Locator, needed_of
from redsync._drivers.nodes import Node
from redsync.testing.simulator import Simulation, SimulationError
from redsync.testing.simulator.checks import Exclusion
from redsync.testing.simulator.scenario import Scenario
from redsync.testing.simulator.stage import Stage
from tests.support.hunting import break_script, hunt

GROUP = {"nodes": 1, "replicas": 2}

STORIES = Path(__file__).parents[2] / "scenarios"


def forget_epochs(monkeypatch):
    """Let clients compare only the process."""
    monkeypatch.setattr(greetings, "elected", lambda run_id, _epoch, history: elected(run_id, 0, history))


def test_vote_must_wait_for_replicas(monkeypatch):
    monkeypatch.setattr(locators, "needed_of", lambda replicas: 0)
    assert "is held by" in hunt(Exclusion, range(1001, 1021), **GROUP)


def test_vote_must_wait_for_replicas_although_the_record_does(monkeypatch):
    monkeypatch.setattr(any_maintenance, "hold_back", lambda *_: None)
    with pytest.raises(SimulationError, match=r"is held by a:1 on a .* and c:1 on c"):
        Scenario.read(STORIES / "stale_replicas.txt").run()


def test_quarantine_must_count_from_the_acknowledgement():
    newborn = break_script("node_initialize", ("gets = epoch and 'joining' or 'newborn'", "gets = 'newborn'"))
    story = Scenario.read(STORIES / "slow_replica.txt")
    with pytest.raises(SimulationError, match=r"is held by a:1 on a .* and b:1 on b"):
        story.run(scripts=newborn)


def test_wait_must_come_after_a_message(monkeypatch):
    def wait_alone(dialect, needed, timeout):
        return [pack("PING"), wait_commands(dialect, needed, timeout)[-1]]

    monkeypatch.setattr(greetings, "wait_commands", wait_alone)
    monkeypatch.setattr(Dialect, "touched", lambda *_: True)
    with pytest.raises(SimulationError, match=r"is held by a:1 on a .* and c:1 on c"):
        Scenario.read(STORIES / "stale_replicas.txt").run()


def test_replicas_must_be_configured_and_not_observed(monkeypatch):
    """Sentinels that were reset list none: then a vote would need none."""
    note = Locator.note

    def observe(locator, witness, replies):
        note(locator, witness, replies)
        observed = [word.replicas for word in locator.words if not isinstance(word, str)]
        locator.observed = max(observed, default=2)

    monkeypatch.setattr(Locator, "note", observe)
    monkeypatch.setattr(Locator, "_misfit", lambda *_: None)
    monkeypatch.setattr(Locator, "needed", property(lambda locator: needed_of(getattr(locator, "observed", 2))))
    with pytest.raises(SimulationError, match=r"is held by a:1 on a .* and b:1 on b"):
        Scenario.read(STORIES / "replicas_not_listed.txt").run()


def test_number_of_the_decision_must_be_compared(monkeypatch):
    forget_epochs(monkeypatch)
    with pytest.raises(SimulationError, match=r"is held by b:1 on b .* and a:1 on a"):
        Scenario.read(STORIES / "named_again.txt").run()


def test_sentinels_must_have_confirmed_the_master_lately(monkeypatch):
    monkeypatch.setattr(Node, "_unconfirmed", lambda *_: None)
    with pytest.raises(SimulationError, match=r"is held by b:1 on b .* and a:1 on a"):
        Scenario.read(STORIES / "replicas_that_return.txt").run()


def test_replica_without_a_record_must_not_be_new():
    new = break_script("node_initialize", ("epoch and epoch ~= '0' and 'joining' or new", "new"))
    story = Scenario.read(STORIES / "promoted_empty.txt")
    with pytest.raises(SimulationError, match=r"is held by a:1 on a .* and b:1 on b"):
        story.run(scripts=new)


def test_record_must_not_survive_in_the_server_between():
    """Found by seed 40014 of read-write locks, when decisions came faster than the Sentinels spread them.

    1a becomes a replica of 1b, which no client has used: it takes over 1b's data, which contains 1a's own record. Then
    it is promoted again. A client that knows neither decision takes it for the server that it was.
    """
    with Simulation(seed=1, nodes=1, replicas=2, lease=2.0) as sim:
        stage = Stage(sim, ["a", "b"], "lock")
        first, second = stage.actors.values()
        (group,) = sim.groups
        a, b, _ = group.servers
        group.slowness = 0.0
        second.machine.pause()
        first.ask(first.acquire, "y")
        sim.run(until=0.5)
        group.isolate([b])
        sim.run(until=0.6)
        first.ask(first.acquire, "x")
        sim.run(until=1.0)
        stage.expect_holds("a", "x")
        first.machine.pause()
        second.machine.resume()
        for sentinel in group.sentinels:
            group.deafen(sentinel)
        group.apart = set()
        group.fail_over(b)
        sim.run(until=1.5)
        group.fail_over(a)
        second.ask(second.acquire, "x", timeout=0.5)
        sim.run(until=2.2)
        stage.expect_said(second, "no quorum for x")
