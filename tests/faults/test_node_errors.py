"""Nodes that answer with errors or with nonsense: each becomes its node's vote, and clients never notice a minority."""

import pytest

from redsync import QuorumError
from redsync._core.quorum import Choice
from tests.support.trouble import accept_writes, refuse_writes

MINORITY, MAJORITY = [1, 3], [0, 2, 4]

LONG = 120.0
"""Seconds of a lease that the tests never wait for: claims that are gone sooner were released."""


@pytest.fixture
def client(make_client, all_nodes_met):
    client = make_client(lease=LONG, node_timeout=2.0)
    with client.get_lock("x"):  # everything is connected
        pass
    return client


@pytest.fixture
def renewing(make_client):
    """A client that renews its holds several times within the test."""
    return make_client(lease=2.0)


def work(client, n=5):
    """Use locks in every way that talks to nodes; none of it fails."""
    for i in range(n):
        lock = client.get_lock(f"work {i}")
        assert lock.acquire(blocking=False)
        assert lock.acquire(blocking=False)
        lock.extend()
        assert lock.locked()
        lock.release()
        lock.release()
        assert lock.acquire(timeout=60.0)
        lock.release()


@pytest.fixture
def failure(promptly):
    """Return a function that gives the votes of an acquire that finds no quorum: at once, and at its deadline."""
    votes = []

    def fail(client, timeout):
        with pytest.raises(QuorumError) as caught:
            client.get_lock("x").acquire(timeout=timeout)
        votes[:] = caught.value.votes

    def failure(client):
        assert promptly(lambda: fail(client, 0.3), 0.8) >= 0.3
        promptly(lambda: fail(client, 0.0), 1.0)
        return votes

    return failure


def check_reasons(votes, indices, words):
    for i in indices:
        assert votes[i].choice is Choice.FAILED
        assert words in votes[i].detail


# Nodes that refuse: how to make them, their errors, and how to make them stop.


def fill(node):
    node.config_set("maxmemory-policy", "noeviction")
    node.config_set("maxmemory", "1")


def empty(node):
    node.config_set("maxmemory", "0")


def forbid(node):
    node.execute_command("ACL", "SETUSER", "default", "-evalsha")


def allow(node):
    node.execute_command("ACL", "SETUSER", "default", "+@all")


@pytest.fixture
def restored(nodes):
    """Restart nodes whose settings a test has changed."""
    yield
    for i in range(5):
        nodes.restart(i)


REFUSALS = {
    "READONLY": (refuse_writes, accept_writes),
    "OOM": (fill, empty),
    "NOPERM": (forbid, allow),
}


@pytest.mark.usefixtures("restored")
def test_minority_that_refuses_goes_unnoticed(client, raw, nothing_left, eventually):
    refusing = dict(zip(MINORITY, ("READONLY", "OOM"), strict=True))
    with client.get_lock("held"):
        for i, code in refusing.items():
            REFUSALS[code][0](raw[i])
        work(client)
    eventually(lambda: all(code in (client.nodes()[i].last_error or "") for i, code in refusing.items()))
    for i, code in refusing.items():
        REFUSALS[code][1](raw[i])
    work(client)
    nothing_left()


@pytest.mark.usefixtures("restored")
def test_votes_name_the_errors_of_a_majority_that_refuses(client, raw, failure, nothing_left):
    refusing = dict(zip(MAJORITY, REFUSALS, strict=True))
    for i, code in refusing.items():
        REFUSALS[code][0](raw[i])
    votes = failure(client)
    for i, code in refusing.items():
        check_reasons(votes, [i], code)
        REFUSALS[code][1](raw[i])
    assert client.get_lock("x").acquire(timeout=60.0)
    client.get_lock("x").release()
    work(client)
    nothing_left()


@pytest.mark.usefixtures("restored")
def test_full_nodes_still_renew_and_release(renewing, raw, nothing_left, await_renewal):
    lock, lasting = renewing.get_lock("x"), renewing.get_lock("y", lease=LONG)
    assert lasting.acquire()
    with lock as hold:
        assert lock.acquire(blocking=False)
        for node in raw:
            fill(node)
        for _ in range(2):
            await_renewal(hold)
        lock.release()
        hold.check()
    lasting.release()
    nothing_left()


# Connections that break or garble.


@pytest.fixture
def proxied(proxies, make_client):
    client = make_client([proxy.url for proxy in proxies], lease=LONG, node_timeout=2.0)
    with client.get_lock("x"):
        pass
    return client


# Each strikes once, on the next reply of that node.
STRIKES = {
    "half_replies": lambda proxy: setattr(proxy, "half_replies", True),
    "garbage": lambda proxy: setattr(proxy, "garbage", True),
    "cut": lambda proxy: proxy.cut(),
}


@pytest.mark.asyncio_too
@pytest.mark.usefixtures("both_flavours")
def test_broken_connections_to_minority_go_unnoticed(proxied, proxies, raw, nothing_left, eventually):
    for strike in STRIKES.values():
        # A quorum confirms a release. A node that it reaches later would refuse, and is needed while two others fail.
        eventually(lambda: {node.state for node in proxied.nodes()} == {"up"} and not any(raw.keys()))
        for i in MINORITY:
            strike(proxies[i])
        work(proxied)
    eventually(lambda: {node.state for node in proxied.nodes()} == {"up"})
    nothing_left()
