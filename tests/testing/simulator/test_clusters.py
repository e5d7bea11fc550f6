"""Clusters: which shard owns which slot, which server knows it, and real clients that follow."""

import asyncio

import pytest

from redsync._core.spellings import slots_of
from redsync._drivers.clusters import ClusterLocator
from redsync._drivers.locators import Location, Witness
from redsync.testing.simulator import Simulation
from redsync.testing.simulator.checks import OF_CLUSTERS, OF_GROUPS, Separation
from redsync.testing.simulator.clusters import Cluster
from redsync.testing.simulator.worlds import SentinelGroups, Servers, world_for

SIMULATION = {"seed": 5, "nodes": 3, "cluster": True, "checkers": OF_CLUSTERS["lock"], "lease": 2.0}


@pytest.fixture
def cluster(sim):
    return sim.world


async def work(lock, turns):
    for _ in range(turns):
        async with lock:
            await asyncio.sleep(0.05)


def read(cluster, server, place=0):
    """Return what a client reads from a server's answer about the slot of a node."""
    locator = ClusterLocator(cluster.slots[place], len(cluster.slots), [Witness("seed:1", None)], 1)
    locator.ask(0, 0.0)
    locator.note(0, [server.describe_cluster()])
    return locator.present if locator.present is not None else locator.excuse


def test_world_depends_on_the_kind_of_nodes():
    assert world_for(None, cluster=False) is Servers
    assert world_for(0, cluster=False) is SentinelGroups
    assert world_for(None, cluster=True) is world_for(2, cluster=True) is Cluster


def test_cluster_has_one_more_master_than_nodes_and_one_replica_of_each(sim, cluster):
    assert cluster.slots == slots_of(3)
    assert [server.name for server in sim.servers] == [f"node-{i}{letter}" for i in (1, 2, 3, 4) for letter in "ab"]
    assert cluster.urls == ["redis+cluster://node-1a,node-2a,node-3a,node-4a?nodes=3&replicas=1"]
    assert [node.name for node in sim.nodes] == ["node-1a", "node-2a", "node-3a"]
    assert [node.index for node in sim.nodes] == [0, 1, 2]
    with Simulation(seed=5, nodes=1, replicas=0, cluster=True, checkers=()) as small:
        assert [server.name for server in small.servers] == ["node-1a", "node-2a", "node-3a"]


def test_servers_answer_where_slots_are_as_real_ones_do(sim, cluster):
    sim.run(until=0.5)
    a, b = cluster.groups[0].servers
    assert read(cluster, b) == Location("node-1a", 6379, 1)
    cluster.groups[0].slowness = 0.0
    cluster.groups[0].fail_over(b)
    assert "list 0 replicas of the master, but replicas=1 needs 1 to acknowledge each vote" in read(cluster, b)
    sim.run(until=2.0)
    assert a.follows is b
    assert [read(cluster, server) for server in sim.servers] == [Location("node-1b", 6379, 5)] * 8


def test_isolated_server_answers_with_old_knowledge(sim, cluster):
    a, b = cluster.groups[0].servers
    cluster.groups[0].isolate([a])
    cluster.groups[0].fail_over(b)
    sim.run(until=5.0)
    assert read(cluster, a).host == "node-1a"
    assert a.has(0)
    assert not cluster.is_settled
    cluster.groups[0].heal()
    sim.run(until=8.0)
    assert not a.has(0)
    assert cluster.is_settled
    assert cluster.groups[0].is_settled


def test_slot_that_has_moved_raises_the_epoch_of_its_owner_unless_it_is_the_highest(sim, cluster):
    cluster.move(0, cluster.groups[3], pause=0.0)
    sim.run(until=0.5)
    assert [shard.epoch for shard in cluster.groups] == [1, 2, 3, 4]
    assert sim.nodes[0].name == "node-4a"
    cluster.move(0, cluster.groups[0], pause=0.0)
    sim.run(until=1.0)
    assert [shard.epoch for shard in cluster.groups] == [5, 2, 3, 4]


def test_cluster_is_not_settled_while_two_nodes_share_a_server(sim, cluster):
    cluster.move(0, cluster.groups[1], pause=0.0)
    sim.run(until=3.0)
    assert [node.name for node in sim.nodes] == ["node-2a", "node-2a", "node-3a"]
    assert not cluster.is_settled
    assert cluster.move(0, cluster.groups[1], pause=0.0) is None
    cluster.move(0, cluster.groups[0], pause=0.0)
    sim.run(until=6.0)
    assert cluster.is_settled


def test_no_server_is_promoted_while_only_a_minority_knows_the_latest_decision(sim, cluster):
    shard = cluster.groups[0]
    assert shard.candidates() == [shard.servers[1]]
    shard.slowness = 100.0
    for other in cluster.groups[1:]:
        other.slowness = 100.0
    shard.fail_over(shard.servers[1])
    assert shard.candidates() == []


def test_clients_follow_slots_and_failovers(sim, cluster):
    workers = [sim.machine(name) for name in "ab"]
    for machine in workers:
        machine.start(work(machine.client().get_lock("x"), 60))
    sim.run(until=4.0)
    cluster.move(0, cluster.groups[3], pause=0.1)
    sim.run(until=7.0)
    cluster.groups[1].fail_over(cluster.groups[1].servers[1])
    sim.run(until=10.0)
    cluster.move(0, cluster.groups[0], pause=0.1)
    sim.run()
    assert {"node-1a", "node-2b", "node-3a", "node-4a"} <= {
        happening.server for happening in sim.trace.happenings if getattr(happening, "script", "") == "lock_acquire"
        and hasattr(happening, "server")
    }  # fmt: skip


def test_checkers_of_clusters_know_of_moved_keys_and_of_shared_servers():
    assert Separation in OF_CLUSTERS["lock"]
    assert {checker.name for checker in OF_GROUPS["semaphore"]} - {
        checker.name for checker in OF_CLUSTERS["semaphore"]
    } == {
        "expiry",
        "slots",
    }
