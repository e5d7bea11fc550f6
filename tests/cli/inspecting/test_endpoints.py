"""Commands on nodes without a fixed address: the voters of a real cluster, and a real Sentinel group."""

import contextlib
import uuid

import pytest
import redis

from redsync import Client, NotOwnedError
from redsync._core.clusters import slots_of, tag_of
from tests.support.local_cluster import LocalCluster
from tests.support.local_sentinel import LocalSentinel

LEASE = 4.0
VOTERS = slots_of(3)


@pytest.fixture(scope="module")
def cluster():
    with LocalCluster(replicas=1) as cluster:
        yield cluster


@pytest.fixture
def client(cluster, eventually):
    """A client whose voters grant."""
    with Client(cluster.url, lease=LEASE, restart_guard=LEASE, node_timeout=1.0) as client:
        eventually(lambda: all(node.state == "up" for node in client.nodes()))
        yield client


@pytest.fixture
def environment(environment, cluster):
    return environment | {"REDSYNC_URLS": cluster.url}


@pytest.fixture
def job(client, redsync, eventually):
    """The name of a lock held on all voters; unique for each test, because a failover may undo a release."""
    lock = client.get_lock(f"job-{uuid.uuid4().hex[:8]}")
    assert lock.acquire(timeout=20)
    eventually(lambda: held_everywhere(redsync, lock.name))
    yield lock.name
    with contextlib.suppress(NotOwnedError):
        lock.release()


def labels(cluster):
    return ["{}:{}/{} of 3".format(*cluster.servers[0], number) for number in (1, 2, 3)]


def held_everywhere(redsync, name):
    done = redsync("show", name, "--json")
    return done.status == 0 and [node["kind"] for node in done.json["nodes"]] == ["lock"] * 3


def test_ls_lists_names_on_voters_and_no_other_keys(redsync, cluster, job, client):
    host, port = cluster.slot_owner(VOTERS[1])
    with redis.Redis(host, port) as owner:
        owner.set(b"{%b}other:thing" % tag_of(VOTERS[1]), 1)
    with redis.RedisCluster(*cluster.servers[0]) as others:
        others.set("redsync:no-voters", 1)
    with client.get_semaphore("seats", permits=2):
        done = redsync("ls")
        assert done.status == 0, done.err
        rows = {line.split()[0]: line for line in done.out.splitlines()}
        assert " lock " in rows[job]
        assert " 3/3 " in rows[job]
        assert " semaphore of 2 " in rows["seats"]
        assert "thing" not in done.out
        assert "no-voters" not in done.out
        assert [entry["name"] for entry in redsync("ls", "--json", job).json["names"]] == [job]
        assert [info.name for info in client.inspect_all()] == [job, "seats"], "the library finds the same"


def test_show_follows_a_voter_to_its_new_master(redsync, cluster, job):
    before = cluster.slot_owner(VOTERS[0])
    assert cluster.failover(0) != before
    assert held_everywhere(redsync, job)


def test_break_releases_a_claim_on_voters(redsync, job):
    owner = redsync("show", job, "--json").json["nodes"][1]["holders"][0]["owner"]
    done = redsync("break", job, "--owner", owner, "--yes")
    assert done.out == "released on 3 of 3 nodes\n", done.err
    assert redsync("ls", job, "--json").json["names"] == []


def test_doctor_shows_server_replicas_epoch_and_guard_of_each_voter(redsync, cluster, job):
    done = redsync("doctor", "--json", REDSYNC_RESTART_GUARD="3600")
    assert done.status == 1, done.err
    for slot, node in zip(VOTERS, done.json["nodes"], strict=True):
        assert node["server"] == "{}:{}".format(*cluster.slot_owner(slot))
        assert node["epoch"] > 0
        assert (node["replicas"], node["in_sync"]) == (1, 1)
        assert 0 < node["guard_left"] < 3600
        assert [each["text"].partition(", ")[0] for each in node["findings"]] == ["its server became the master"]
    shown = redsync("doctor", REDSYNC_RESTART_GUARD="0").out.split("\n\n")[1].splitlines()
    assert shown[0].split("  ")[0] == "NODE"
    assert [line.split("  ")[-1].strip() for line in shown] == ["GUARD LEFT", "none", "none", "none"]
    assert all(len(line) <= 80 for line in shown)


def test_doctor_finds_two_voters_on_one_master(redsync, cluster):
    home, other = (cluster.servers.index(cluster.slot_owner(slot)) for slot in VOTERS[1::-1])
    cluster.move_slot(VOTERS[1], other)
    try:
        found = [each["text"] for each in redsync("doctor", "--json").json["findings"] if each["problem"]]
    finally:
        cluster.move_slot(VOTERS[1], home)
    one, two, _ = labels(cluster)
    assert found == [f"{one}, {two} are on one server: only one of them has a vote"]


# A Sentinel group.


@pytest.fixture(scope="module")
def group():
    with LocalSentinel(replicas=2) as group:
        yield group


def test_doctor_shows_the_server_of_a_group_and_missing_sentinels_and_replicas(redsync, group, eventually):
    with Client(group.url, lease=1.0, restart_guard=1.0, node_timeout=1.0) as client:
        eventually(lambda: client.nodes()[0].state == "up")
        (node,) = redsync("doctor", "--json", REDSYNC_URLS=group.url, REDSYNC_RESTART_GUARD="0").json["nodes"]
    assert node["server"] == "{}:{}".format(*group.master)
    assert (node["epoch"], node["replicas"], node["in_sync"], node["guard_left"]) == (group.epoch, 2, 2, 0.0)
    assert not [each for each in node["findings"] if each["problem"]]
    for host, port in group.sentinels:
        with redis.Redis(host, port) as sentinel:
            rule = "on >secret -@all +sentinel|master +sentinel|get-master-addr-by-name"
            sentinel.execute_command("ACL", "SETUSER", "locker", *rule.split())
    user = f"{group.url}&sentinel_username=locker&sentinel_password=secret"
    assert redsync("ls", REDSYNC_URLS=user).status == 0, "the documented rule suffices"
    done = redsync("ls", REDSYNC_URLS=group.url.replace("mymaster", "other"))
    assert done.status == 69
    assert "no listed Sentinel knows the master 'other': " in done.err
    group.kill_replica()
    lonely = group.url.replace("//", "//127.0.0.1:1,{}:{},".format(*group.master))
    done = redsync("doctor", "--json", REDSYNC_URLS=lonely, REDSYNC_RESTART_GUARD="0")
    *found, stranger = [each["text"] for each in done.json["nodes"][0]["findings"] if each["problem"]]
    assert found == [
        "1 of its 2 replicas are in sync; each vote needs 1",
        "the Sentinel 127.0.0.1:1 does not name the master: Connection refused",
    ]
    assert stranger.startswith("the Sentinel {}:{} does not name the master: ".format(*group.master))
