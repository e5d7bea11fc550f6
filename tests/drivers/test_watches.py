"""Following a master from server to server, for threads: real servers, Sentinels that answer as the test wants."""

import math
import threading
import time

import pytest
import redis

from redsync import Client, QuorumError
from redsync._core.memory import BIRTH_KEY
from tests.drivers.conftest import Password
from tests.support.hostile import Hostile, dribble
from tests.support.sentinels import FakeSentinels

LEASE = 0.6
"""Also the guard, which a test waits out."""


@pytest.fixture
def client(sentinels):
    with Client(sentinels.url, lease=LEASE, node_timeout=1.0) as client:
        yield client


def kinds(servers):
    """Return the birth records that the servers have: kind and epoch."""
    found = []
    for port in servers.ports:
        with redis.Redis(port=port) as server:
            kind, _, process = (server.get(BIRTH_KEY) or b"none 0 -@-.").decode().split(" ")
            found.append(f"{kind} {process.partition('@')[2].partition('.')[0]}")
    return found


def test_client_follows_to_a_new_server_which_grants_after_the_guard(client, sentinels, servers, eventually):
    (status,) = client.nodes()
    assert (status.server, status.epoch) == (f"127.0.0.1:{servers.ports[0]}", 1)
    eventually(lambda: kinds(servers) == ["newborn 1", "none -"])
    named_at = time.monotonic()
    sentinels.say(servers.ports[1], 2)
    eventually(lambda: client.nodes()[0].server == f"127.0.0.1:{servers.ports[1]}")
    assert client.get_lock("x").acquire(timeout=20)
    assert time.monotonic() - named_at > LEASE
    assert kinds(servers)[1] == "newborn 2"
    assert client.nodes()[0].state == "up"


def test_hold_whose_claim_the_next_server_has_goes_on(sentinels, servers, eventually):
    lease = 6.0
    options = {"lease": lease, "restart_guard": lease, "node_timeout": 1.0}
    with redis.Redis(port=servers.ports[1]) as replica, Client(sentinels.url, **options) as client:
        replica.replicaof("127.0.0.1", str(servers.ports[0]))
        with client.get_lock("x") as hold:
            with redis.Redis(port=servers.ports[0]) as master:
                assert master.set("after", 1)
                assert master.wait(1, 10_000) == 1
            replica.replicaof("NO", "ONE")
            sentinels.say(servers.ports[1], 2)
            eventually(lambda: client.nodes()[0].epoch == 2)
            eventually(lambda: hold.remaining() > 0.9 * lease)


def test_client_goes_on_without_sentinels_but_needs_them_to_reconnect(client, sentinels, servers, eventually):
    sentinels.close()
    eventually(lambda: client.runner.nodes[0].locator.present is None)
    assert client.get_lock("x").acquire(timeout=20)
    servers.kill(0)
    servers.restart(0)
    eventually(lambda: "0 of 3 Sentinels name the master, 2 must" in (client.nodes()[0].last_error or ""))
    with pytest.raises(QuorumError, match="0 of 3 Sentinels"):
        client.get_lock("y").acquire(timeout=0)


@pytest.mark.asyncio_too
@pytest.mark.usefixtures("both_flavours")
def test_name_that_no_sentinel_knows_fails_at_once_until_they_know_it(make_client, servers, eventually):
    with FakeSentinels() as sentinels:
        client = make_client(sentinels.url, outage_timeout=math.inf)
        with pytest.raises(QuorumError, match="No such master with that name"):
            client.get_lock("x").acquire()
        sentinels.say(servers.ports[0], 1)
        eventually(lambda: client.nodes()[0].state == "up")
        assert client.get_lock("x").acquire(timeout=10)  # The client of the other flavour may have just held it.


@pytest.mark.asyncio_too
@pytest.mark.usefixtures("both_flavours")
def test_master_with_replicas_stays_confirmed_within_a_short_guard(make_client, servers, eventually):
    servers.reset()
    with FakeSentinels(replicas=1) as sentinels, redis.Redis(port=servers.ports[1]) as replica:
        replica.replicaof("127.0.0.1", str(servers.ports[0]))
        sentinels.say(servers.ports[0], 1)
        client = make_client(sentinels.url, lease=0.45, restart_guard=0.45, node_timeout=0.1)
        eventually(lambda: client.nodes()[0].server)
        (node,) = client.runner.nodes

        def is_confirmed():
            looks = [node.unconfirmed(client.runner.now(), 0.45) for _ in range(100) if time.sleep(0.01) is None]
            return sum(map(bool, looks)) < 20

        eventually(is_confirmed)  # not at once, on a busy machine; asked twice a second, it never is
        replica.replicaof("NO", "ONE")


def test_sentinel_that_answers_without_end_is_asked_over_another_connection(eventually):
    asked = []

    def answer(words):
        asked.append(words)
        return dribble(b"$1000000\r\n")

    with Hostile(answer) as one, Client(f"redis+sentinel://127.0.0.1:{one.port}/mymaster", node_timeout=0.1):
        eventually(lambda: len(asked) > 1)


def test_witness_of_several_voters_is_asked_once_for_all(eventually):
    with (
        Hostile(lambda _: [b"-ERR so it answers\r\n"]) as one,
        Client(f"redis+cluster://127.0.0.1:{one.port}?nodes=3", node_timeout=0.1) as client,
    ):
        assert [thread.name for thread in threading.enumerate()].count(f"redsync-watch-127.0.0.1:{one.port}") == 1
        eventually(lambda: all("so it answers" in (node.last_error or "") for node in client.nodes()))


def test_replica_is_not_mistaken_for_the_master(client, sentinels, servers, eventually):
    """The Sentinels name the new master a moment before it is promoted."""
    with redis.Redis(port=servers.ports[1]) as server:
        server.replicaof("127.0.0.1", str(servers.ports[0]))
        sentinels.say(servers.ports[1], 2)
        eventually(lambda: "is a replica of 127.0.0.1" in (client.nodes()[0].last_error or ""))
        server.replicaof("NO", "ONE")
        eventually(lambda: client.nodes()[0].epoch == 2)


def test_replica_given_as_a_node_tells_what_to_do(servers):
    with redis.Redis(port=servers.ports[1]) as server:
        server.replicaof("127.0.0.1", str(servers.ports[0]))
        with Client(servers.urls[1], node_timeout=1.0) as client:
            (status,) = client.nodes()
        server.replicaof("NO", "ONE")
    assert status.state == "down"
    assert status.last_error == (
        f"is a replica of 127.0.0.1:{servers.ports[0]}: give the master's address, or that of the Sentinels as "
        f"redis+sentinel://"
    )


def test_sentinel_is_asked_again_even_if_the_application_exits_when_asked_for_a_password(sentinels, eventually):
    password = Password(exits=3)
    group = redis.Sentinel(
        [("127.0.0.1", port) for port in sentinels.ports], sentinel_kwargs={"credential_provider": password}
    )
    with Client(group.master_for("mymaster"), lease=LEASE, node_timeout=1.0) as client:
        eventually(lambda: client.nodes()[0].server)
    assert password.asked > 3
