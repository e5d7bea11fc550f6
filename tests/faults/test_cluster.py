"""Processes contend on a cluster's voters, while masters fail over and slots move; and the voters' behaviour."""

import os
import time
from functools import partial

import pytest

from redsync import Client, ConfigurationError
from redsync._core.clusters import slots_of
from tests.faults.havoc import LEASE, fight
from tests.support.local_cluster import LocalCluster

FAILOVERS = int(os.environ.get("REDSYNC_FAILOVERS") or 4)
VOTERS = slots_of(3)


@pytest.fixture(scope="module")
def cluster():
    with LocalCluster(replicas=2) as cluster:
        yield cluster


@pytest.fixture
def client(cluster, eventually):
    with Client(cluster.url, lease=LEASE, node_timeout=1.0) as client:
        eventually(lambda: all(node.state == "up" for node in client.nodes()))
        yield client


def server_of(client, voter):
    return client.nodes()[voter].server


def named(address):
    return "{}:{}".format(*address)


@pytest.mark.sweep
def test_voters_are_the_owners_of_their_slots_and_follow_them(client, cluster, eventually):
    assert [server_of(client, voter) for voter in range(3)] == [named(cluster.slot_owner(slot)) for slot in VOTERS]
    new = cluster.failover(0)
    eventually(lambda: server_of(client, 0) == named(new))
    to = cluster.servers.index(cluster.masters[0])
    home = cluster.servers.index(cluster.slot_owner(VOTERS[1]))
    cluster.begin_move_slot(VOTERS[1], to)
    assert client.get_lock("x").acquire(timeout=20), "the other two decide"
    cluster.end_move_slot(VOTERS[1], to)
    eventually(lambda: sorted(node.state == "down" for node in client.nodes()[:2]) == [False, True])
    eventually(lambda: any("is on the same server as" in (node.last_error or "") for node in client.nodes()))
    client.get_lock("x").release()
    assert client.get_lock("y").acquire(timeout=20), "one server is one vote, and the third is another"
    cluster.move_slot(VOTERS[1], home)
    eventually(lambda: [node.state for node in client.nodes()] == ["up"] * 3)
    client.get_lock("y").release()


@pytest.mark.sweep
def test_single_node_of_a_cluster_is_refused(cluster):
    with pytest.raises(ConfigurationError, match="is part of a cluster"):
        Client(f"redis://{named(cluster.masters[0])}")


@pytest.mark.sweep
@pytest.mark.timeout(180 + 15 * FAILOVERS)
def test_promises_outlive_masters_and_moves(tmp_path, seed):
    with LocalCluster(replicas=2) as cluster:
        fight(tmp_path, lambda _: [cluster.url], seed, partial(_strike, cluster), FAILOVERS, clients=4)


def _strike(cluster, rng):
    voter = rng.randrange(3)
    match how := rng.choice(["failover", "kill", "move"]):
        case "failover":
            cluster.failover(voter, rng.choice(["", "FORCE"]))
        case "kill":
            old = cluster.kill_master(voter)
            time.sleep(rng.uniform(0.0, LEASE))
            cluster.restart(cluster.servers.index(old))
        case "move":
            home = cluster.servers.index(cluster.slot_owner(VOTERS[voter]))
            away = cluster.servers.index(cluster.masters[(voter + 1) % 3])
            cluster.begin_move_slot(VOTERS[voter], away)
            time.sleep(rng.uniform(0.0, LEASE))
            cluster.end_move_slot(VOTERS[voter], away)
            time.sleep(rng.uniform(0.0, LEASE))
            cluster.move_slot(VOTERS[voter], home)
    time.sleep(rng.uniform(0.0, 2 * LEASE))
    return how
