"""Statements about clusters in scenarios; `tests/scenarios` has the stories."""

import pytest

from redsync.testing.simulator.scenario import Scenario, ScenarioError

HEAD = "cluster yes\nnodes 2\nreplicas 1\nclients a\n"


def play(*statements):
    return Scenario(HEAD + "\n".join(statements)).run()


def test_slots_go_where_the_story_says():
    sim = play(
        "0.1 slot of 1 moves to 3",
        "0.1 slot of 2 goes to 1 without its keys",
        "0.5 server 3a crashes",
        "0.6 Sentinels promote 3b",
        "2.0 expect nobody holds x",
    )
    assert [node.name for node in sim.nodes] == ["node-3b", "node-1a"]


def test_slot_may_stay():
    sim = play(
        "3.0 a acquires x",
        "4.0 slot of 1 moves to 3, a key every 10 at most",
        "4.1 slot of 1 stays",
        "30.0 expect a holds x",
    )
    assert [node.name for node in sim.nodes] == ["node-1a", "node-2a"]
    assert sim.world.moves == {}


def test_server_of_no_shard_is_refused():
    with pytest.raises(ScenarioError, match="nodes are numbered from 1 to 2"):
        Scenario(HEAD + "0.1 server 4a crashes")
