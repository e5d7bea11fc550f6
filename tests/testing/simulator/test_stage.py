"""Statements about groups and clusters in scenarios; `tests/scenarios` has the stories."""

import pytest

from redsync.testing.simulator.scenario import Scenario, ScenarioError

GROUPS = "nodes 2\nreplicas 2\nclients a\n"
CLUSTER = "cluster yes\nnodes 2\nreplicas 1\nclients a\n"


def play(head, *statements):
    return Scenario(head + "\n".join(statements)).run()


def test_statements_do_to_groups_what_they_say():
    sim = play(
        GROUPS,
        "0.1 2a 2c reach only each other",
        "0.1 Sentinels promote 2b",
        "0.1 2c is not told",
        "0.2 server 1c crashes",
        "0.3 a is cut off from servers 2a 2b Sentinels",
        "0.9 servers of 2 reach each other",
        "2.0 expect nobody holds x",
    )
    first, second = sim.groups
    a, b, c = second.servers
    assert first.servers[2].state == "down"
    assert sim.nodes == [first.servers[0], b]
    assert (a.follows, c.follows) == (b, a)
    (machine,) = sim.machines
    cut = [end.name for end in (*sim.servers, *sim.sentinels) if sim.network.route(machine, end).troubled]
    assert cut == ["node-2a", "node-2b", *(sentinel.name for sentinel in second.sentinels)]


def test_server_hangs_resumes_and_restarts():
    sim = play(
        GROUPS,
        "0.1 server 1a hangs", "0.1 server 1b hangs", "0.2 server 1a resumes", "0.3 server 2a crashes",
        "0.4 server 2a restarts",
    )  # fmt: skip
    assert [server.state for server in sim.servers] == ["up", "hung", "up", "up", "up", "up"]


def test_server_of_no_node_is_refused():
    with pytest.raises(ScenarioError, match="nodes are numbered from 1 to 2"):
        Scenario(GROUPS + "0.1 Sentinels promote 3a")


def test_slots_go_where_the_story_says():
    sim = play(
        CLUSTER,
        "0.1 slot of 1 moves to 3",
        "0.1 slot of 2 goes to 1 without its keys",
        "0.5 server 3a crashes",
        "0.6 Sentinels promote 3b",
        "2.0 expect nobody holds x",
    )
    assert [node.name for node in sim.nodes] == ["node-3b", "node-1a"]


def test_slot_may_stay():
    sim = play(
        CLUSTER,
        "3.0 a acquires x",
        "4.0 slot of 1 moves to 3, a key every 10 at most",
        "4.1 slot of 1 stays",
        "30.0 expect a holds x",
    )
    assert [node.name for node in sim.nodes] == ["node-1a", "node-2a"]
    assert sim.world.moves == {}


def test_server_of_no_shard_is_refused():
    with pytest.raises(ScenarioError, match="nodes are numbered from 1 to 2"):
        Scenario(CLUSTER + "0.1 server 4a crashes")
