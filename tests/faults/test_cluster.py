"""Processes contend on a cluster's voters, while masters fail over and slots move; and the voters' behaviour."""

import contextlib
import os
import random
import time
from functools import partial

import pytest

from redsync import Client, ConfigurationError
from redsync._core.spellings import slots_of
from redsync.testing import LocalCluster
from redsync.testing.harness.crew import Crew
from redsync.testing.harness.exclusion import disorder, lost_updates, most_at_once, overlaps
from redsync.testing.harness.holds import holds_of
from redsync.testing.harness.journal import read
from redsync.testing.harness.ledger import read_ledgers
from redsync.testing.harness.orders import Order

LEASE = 1.0
PERMITS = 3
NAMES = ["lock:0", "fenced_lock:1", "semaphore:2"]
FAILOVERS = int(os.environ.get("REDSYNC_FAILOVERS") or 6)
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
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("nodes=3", "nodes=5"), "the cluster has too few masters: 3 have slots, nodes=5"),
        (("nodes=3", "nodes="), "node 1 needs nodes="),
    ],
)
def test_impossible_number_of_voters_is_refused_at_once(cluster, change, sentence):
    with pytest.raises(ConfigurationError, match=sentence), Client(cluster.url.replace(*change)):
        pass


@pytest.mark.sweep
def test_server_of_a_cluster_is_refused_as_a_plain_node(cluster):
    with (
        pytest.raises(ConfigurationError, match="is part of a cluster"),
        Client(f"redis://{named(cluster.masters[0])}"),
    ):
        pass


@pytest.mark.sweep
@pytest.mark.timeout(60 + 15 * FAILOVERS)
def test_promises_outlive_masters_and_moves(tmp_path, seed):
    rng = random.Random(seed)
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(LocalCluster(replicas=2))
        crew = stack.enter_context(Crew(tmp_path, partial(_order, cluster, tmp_path, seed)))
        for client in range(6):
            crew.start(client)
        crew.await_all("ready")
        crew.go()
        done = []
        for _ in range(FAILOVERS):
            crew.check()
            done.append(_strike(cluster, rng))
        time.sleep(2 * LEASE)
        crew.finish()
    each = [holds_of(read(life.journal), journal=life.journal.name) for life in crew.lives]
    print(f"{[len(mine) for mine in each]} holds; {done}")
    assert all(each), "one of them got nothing"
    lock, fenced, semaphore = ([hold for mine in each for hold in mine if hold.name == name] for name in NAMES)
    _, counters = read_ledgers(tmp_path, NAMES)
    assert not overlaps(lock)
    assert not overlaps(fenced)
    assert not disorder(fenced)
    assert most_at_once(semaphore)[0] <= PERMITS
    assert lost_updates(lock, counters[NAMES[0]]) == lost_updates(fenced, counters[NAMES[1]]) == 0


def _order(cluster, directory, seed, client, first, journal):  # noqa: PLR0917  (a crew calls it)
    return Order(
        urls=[cluster.url],
        names=NAMES,
        directory=str(directory),
        journal=str(journal),
        first=first,
        owners=2,
        flavour=["threads", "asyncio"][client % 2],
        seed=str(seed),
        limit=PERMITS,
        lease=LEASE,
        warm=20.0,
    )


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
