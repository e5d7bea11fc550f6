"""Mistakes planted in the use of a cluster's nodes, each of which a checker finds."""

from pathlib import Path

import pytest

from redsync._drivers import locators
from redsync._drivers.node_registry import NodeRegistry
from redsync.testing.simulator import SimulationError
from redsync.testing.simulator.checks import Exclusion, Separation
from redsync.testing.simulator.scenario import Scenario
from tests.support.hunting import break_script, hunt, trust_records

STORIES = Path(__file__).parents[2] / "scenarios"


def test_two_slots_on_one_master_must_not_count_twice(monkeypatch):
    monkeypatch.setattr(NodeRegistry, "_is_present", lambda *_: False)
    assert "counts two votes of node-" in hunt(Separation, range(1001, 1011), nodes=3, cluster=True)


def test_two_slots_on_one_master_must_not_count_twice_in_the_story_either(monkeypatch):
    monkeypatch.setattr(NodeRegistry, "_is_present", lambda *_: False)
    with pytest.raises(SimulationError, match=r"counts two votes of node-1a for #"):
        Scenario.read(STORIES / "two_slots_on_one_master.txt").run()


def test_slot_that_has_moved_without_its_keys_must_not_be_new():
    new = break_script("node_initialize", ("epoch and epoch ~= '0' and 'joining' or new", "new"))
    with pytest.raises(SimulationError, match=r"is held by a:1 on a .* and b:1 on b"):
        Scenario.read(STORIES / "moved_without_keys.txt").run(scripts=new)


def test_record_that_has_moved_must_not_count_under_its_new_owner(monkeypatch):
    broken = trust_records(monkeypatch)
    assert "is held by" in hunt(Exclusion, range(1050, 1250), nodes=1, replicas=2, cluster=True, scripts=broken)


def test_vote_must_wait_for_replicas(monkeypatch):
    monkeypatch.setattr(locators, "needed_of", lambda replicas: 0)
    assert "is held by" in hunt(Exclusion, range(1001, 1201), nodes=1, replicas=2, cluster=True)
