"""Migrations: keys move one by one, with their time to live; a move may wait, be forced, or be aborted."""

import math

import pytest

SIMULATION = {"seed": 3, "nodes": 1, "cluster": True, "checkers": (), "begin": 0.5}


@pytest.fixture
def cluster(sim):
    source = sim.world.groups[0].master
    for number in range(5):
        source.store.execute(b"set", sim.world.tags[0] + b"%d" % number, b"1", b"px", b"60000")
    return sim.world


def count(cluster):
    return [len(shard.master.keys_of(cluster.tags[0])) for shard in cluster.groups[:2]]


def test_keys_move_one_by_one_and_last_as_long_as_before(sim, cluster):
    cluster.move(0, cluster.groups[1], pause=0.1)
    seen = []
    while cluster.moves:
        seen.append(count(cluster))
        sim.run(until=sim.now + 0.01)
    assert [4, 1] in seen
    assert [1, 4] in seen
    assert count(cluster) == [0, 5]
    value, left = sim.nodes[0].store.peek(b"3")
    assert value == b"1"
    assert 59_000 < left < 60_001
    sim.run(until=sim.now + 1.0)
    assert [len(server.keys_of(cluster.tags[0])) for server in cluster.groups[1].servers] == [5, 5]


def test_move_waits_for_masters_that_can_not_be_reached(sim, cluster):
    move = cluster.move(0, cluster.groups[1], pause=0.0)
    cluster.groups[1].master.hang()
    sim.run(until=2.0)
    assert count(cluster) == [4, 1]
    assert not move.force()
    cluster.groups[1].master.resume()
    sim.run(until=3.0)
    assert count(cluster) == [0, 5]


def test_move_continues_after_a_failover_of_the_old_master(sim, cluster):
    cluster.groups[0].master.propagate()
    cluster.move(0, cluster.groups[1], pause=0.5)
    sim.run(until=1.0)
    cluster.groups[0].slowness = 0.0
    cluster.groups[0].fail_over(cluster.groups[0].servers[1])
    assert cluster.groups[0].master.leaving == {}
    sim.run(until=5.0)
    assert count(cluster) == [0, 5]
    assert sim.nodes[0].name == "node-2a"


def test_move_that_is_forced_loses_the_keys_that_have_not_moved(sim, cluster):
    move = cluster.move(0, cluster.groups[1], pause=1.0)
    assert move.force()
    assert count(cluster) == [0, 1]
    assert sim.nodes[0].name == "node-2a"


def test_aborted_move_takes_the_keys_back(sim, cluster):
    source, target = cluster.groups[0].master, cluster.groups[1].master
    move = cluster.move(0, cluster.groups[1], pause=0.1)
    sim.run(until=0.6)
    moved = target.keys_of(cluster.tags[0])
    assert 0 < len(moved) < 5
    source.store.execute(b"set", moved[0], b"newer")
    move.abort()
    assert source.leaving == {0: target}
    sim.run(until=5.0)
    assert count(cluster) == [5, 0]
    assert source.store.peek(moved[0])[0] == b"newer"
    assert source.leaving == {}
    assert sim.nodes[0].name == "node-1a"
    assert not cluster.moves


def test_no_key_leaves_a_master_that_has_less_than_a_majority_of_its_shard(sim, cluster):
    """The server that it replaced may still gather acknowledgements, and shares no server with the other shard."""
    shard = cluster.groups[0]
    cluster.groups[0].master.propagate()
    sim.run(until=0.6)
    shard.fail_over(shard.servers[1])
    shard.tell(shard.servers[0], math.inf)
    cluster.groups[1].slowness = cluster.groups[2].slowness = 0.0
    cluster.move(0, cluster.groups[1], pause=0.0)
    sim.run(until=5.0)
    assert not shard.is_whole
    assert sim.nodes[0].name == "node-1b"
    shard.tell(shard.servers[0], 0.0)
    sim.run(until=6.0)
    assert shard.is_whole
    assert sim.nodes[0].name == "node-2a"
