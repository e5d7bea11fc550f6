"""A real cluster: the effects of each method."""

import contextlib

import pytest
import redis

from redsync.testing import LocalCluster
from redsync.testing.asking import command

SLOT = 100


@pytest.fixture(scope="module")
def cluster():
    with LocalCluster(replicas=1) as cluster:
        yield cluster


def test_masters_serve_all_slots(cluster):
    assert cluster.masters == cluster.servers[:3]
    assert len(cluster.servers) == 6
    assert [cluster.slot_owner(slot) for slot in (0, 5461, 16383)] == cluster.masters
    for server in cluster.servers:
        assert "cluster_state:ok" in command(server, "CLUSTER", "INFO")
    roles = [command(server, "ROLE")[0] for server in cluster.servers]
    assert roles == ["master"] * 3 + ["slave"] * 3


def test_masters_begin_with_distinct_epochs(cluster):
    for server in cluster.servers:
        told = [line.split() for line in command(server, "CLUSTER", "NODES").splitlines()]
        epochs = {int(words[1].partition("@")[0].rpartition(":")[2]): int(words[6]) for words in told if words[8:]}
        # Not 1, 2 and 3: other tests of this cluster may have come first.
        assert len(set(epochs.values()) - {0}) == 3


def test_url_names_the_servers_that_were_masters_at_first(cluster):
    seeds = ",".join(f"{host}:{port}" for host, port in cluster.servers[:3])
    assert cluster.url == f"redis+cluster://{seeds}?nodes=3&replicas=1"


@pytest.mark.parametrize("how", ["", "FORCE", "TAKEOVER"])
def test_failover_makes_a_replica_the_master(cluster, how):
    old = cluster.masters[0]
    new = cluster.failover(0, how)
    assert new != old
    assert cluster.masters[0] == new
    assert {cluster.slot_owner(slot) for slot in range(0, 5461, 1000)} == {new}


def test_slot_moves_with_its_keys_and_redirects_meanwhile(cluster):
    source, target = cluster.slot_owner(SLOT), cluster.masters[1]
    keys = [f"{{{tag}}}key" for tag in range(200_000) if redis.crc.key_slot(str(tag).encode()) == SLOT][:6]
    for key in keys[:5]:
        command(source, "SET", key, "value")
    to = cluster.servers.index(target)
    cluster.begin_move_slot(SLOT, to)
    with pytest.raises(redis.ResponseError, match=f"{SLOT} {target[0]}:{target[1]}"):
        command(source, "GET", keys[-1])
    cluster.end_move_slot(SLOT, to)
    assert cluster.slot_owner(SLOT) == target
    assert [command(target, "GET", key) for key in keys[:5]] == ["value"] * 5
    cluster.move_slot(SLOT, cluster.servers.index(source))
    assert cluster.slot_owner(SLOT) == source


def test_master_that_is_killed_is_replaced_and_comes_back_as_a_replica(cluster):
    old = cluster.kill_master(2)
    new = cluster.masters[2]
    assert new != old
    with pytest.raises(redis.ConnectionError):
        command(old, "PING")
    cluster.restart(cluster.servers.index(old))
    assert command(old, "ROLE")[0] == "slave"
    assert command(old, "ROLE")[2] == new[1]


def test_cluster_ends_with_its_block():
    with LocalCluster(replicas=0) as cluster:
        servers = cluster.servers
        assert cluster.url.endswith("?nodes=3&replicas=0")
        with pytest.raises(RuntimeError, match="has no running replica"):
            cluster.failover(0)
    for server in servers:
        with pytest.raises(redis.ConnectionError):
            command(server, "PING")
    with pytest.raises(RuntimeError, match="closed"):
        cluster.kill_master(0)


@pytest.mark.parametrize("sizes", [(2, 1), (3, -1)])
def test_cluster_that_could_not_fail_over_is_refused(sizes):
    with pytest.raises(ValueError, match="needs 3 masters"), contextlib.closing(LocalCluster(*sizes)):
        pass
