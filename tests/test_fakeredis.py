"""fakeredis instances as nodes, so that users can test their code without a server."""

import os

import fakeredis
import pytest

from redsync import Client, ConfigurationError
from tests.support.leftovers import claims


@pytest.fixture
def fakes():
    return [fakeredis.FakeRedis(server=fakeredis.FakeServer()) for _ in range(3)]


@pytest.fixture
def client(fakes, make_worker):
    with Client(fakes) as client:
        yield client


@pytest.fixture
def lock(client):
    return client.get_lock("x")


def test_lock_is_acquired_and_released(client, lock, fakes, eventually):
    assert lock.acquire()
    assert lock.owned()
    assert lock.locked()
    assert client.inspect("x").holders[0].pid == os.getpid()
    # Not at once: the maintenance may be sending, and then sends this too.
    eventually(lambda: [fake.hlen("redsync:x") for fake in fakes] == [1, 1, 1])
    assert [info.name for info in client.inspect_all()] == ["x"]
    lock.release()
    assert not lock.locked()
    eventually(lambda: not any(claims(fake) for fake in fakes))


def test_emptied_instance_takes_no_part_in_new_grants(client, lock, fakes, eventually):
    """Birth records guard without a server; an instance has no uptime."""
    with lock:
        fakes[0].flushall()
    assert lock.acquire(False)
    eventually(lambda: [status.state for status in client.nodes()] == ["quarantined", "up", "up"])
    # The thread that heard of it records the state first.
    assert "may have forgotten claims" in eventually(lambda: client.nodes()[0].last_error)


def test_nodes_are_up(client):
    statuses = client.nodes()
    assert [status.state for status in statuses] == ["up"] * 3
    assert [status.version for status in statuses] == [f"fakeredis {fakeredis.__version__}"] * 3
    assert [status.uptime for status in statuses] == [None] * 3
    assert len({status.address for status in statuses}) == 3


def test_single_instance_suffices_but_is_refused_when_listed_twice(other):
    fake = fakeredis.FakeRedis(server=fakeredis.FakeServer())
    with Client([fake]) as client, client.get_mutex("x"):
        assert not other.do(client.get_mutex("x").acquire, False)
    with pytest.raises(ConfigurationError):
        Client([fake, fake])
