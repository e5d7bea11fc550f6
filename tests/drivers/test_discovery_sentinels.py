"""Sentinel groups as given by callers: the meaning of URLs, and invalid ones."""

import pickle

import pytest
import redis
import redis.asyncio
import redis.connection
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.sentinel import Sentinel

from redsync import Client, ConfigurationError
from redsync._drivers.discovery import Location
from redsync._drivers.nodes import make_nodes

HOSTS = "s1:1001,s2:1002,s3"
NOWHERE = "redis+sentinel://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3/mymaster/0?replicas=2"


def node_of(url, client_class=redis.Redis):
    (node,) = make_nodes(url, client_class)
    return node


def connection_of(node, location=("h", 5)):
    node.location = Location(*location, 0)
    return node.make_connection(1.0)


@pytest.mark.parametrize("client_class", [redis.Redis, redis.asyncio.Redis])
def test_url_has_every_setting(client_class):
    node = node_of(
        f"redis+sentinel://user:p%40ss@{HOSTS}/my%20master/7?replicas=3&socket_keepalive=yes"
        "&sentinel_username=watcher&sentinel_password=s%26cret",
        client_class,
    )
    locator = node.locator
    assert (locator.subject, locator.replicas, node.needed) == ("my master", 3, 2)
    assert [witness.address for witness in locator.witnesses] == ["s1:1001", "s2:1002", "s3:26379"]
    for witness in locator.witnesses:
        told = witness.pool.connection_kwargs
        assert (told["username"], told["password"], f"{told['host']}:{told['port']}") == (
            "watcher",
            "s&cret",
            witness.address,
        )
    connection = connection_of(node)
    assert (connection.host, connection.port, connection.db) == ("h", 5, 7)
    assert (connection.username, connection.password, connection.socket_keepalive) == ("user", "p@ss", True)
    assert node.address == "my master@s1:1001"
    assert node.home == "my master@s1:1001,s2:1002,s3:26379/7"


@pytest.mark.parametrize("ssl", [False, True])
@pytest.mark.parametrize(
    ("sentinel", "module"), [(Sentinel, redis.connection), (AsyncSentinel, redis.asyncio.connection)]
)
def test_redis_py_client_has_the_same_settings(sentinel, module, ssl):
    given = sentinel([("s1", 1001), ("s2", 1002)], sentinel_kwargs={"password": "s"}, password="p").master_for(
        "m", db=3, ssl=ssl
    )
    node = node_of([given], redis.Redis if module is redis.connection else redis.asyncio.Redis)
    assert [witness.address for witness in node.locator.witnesses] == ["s1:1001", "s2:1002"]
    connection = connection_of(node)
    assert type(connection) is (module.SSLConnection if ssl else module.Connection)
    assert (connection.host, connection.port, connection.db, connection.password) == ("h", 5, 3, "p")
    assert node.needed == 0
    assert node.url is None


@pytest.mark.parametrize(
    "url",
    [
        "redis+sentinel://s1/m?socket_timeout=soon",
        "rediss+sentinel://s1/m?ssl_cert_reqs=secret",
        "redis+sentinel://:secret@s1/m?unheard=of",
        "redis+cluster://:secret@s1?nodes=3&unheard=of",
    ],
)
def test_option_that_redis_py_does_not_know_is_refused_at_once_and_not_shown(url):
    """`tests/core/test_urls.py` has other invalid URLs."""
    with pytest.raises(ConfigurationError, match="has an option or a value that redis-py does not know") as caught:
        make_nodes(url, redis.Redis)
    assert "secret" not in str(caught.value)


def test_single_group_has_the_default_restart_guard_of_several_nodes():
    with Client(NOWHERE, lease=7.0, node_timeout=0.05) as client:
        assert client.runner.session.timing.restart_guard == 7.0
        assert [status.state for status in client.nodes()] == ["down"]


def test_client_of_a_group_is_pickled_as_its_url():
    with Client(NOWHERE, node_timeout=0.05) as client:
        again = pickle.loads(pickle.dumps(client))
        assert again is client or again.nodes()[0].address == client.nodes()[0].address
        again.close()


def test_environment_may_have_urls_with_commas(monkeypatch):
    monkeypatch.setenv("REDSYNC_URLS", f"{NOWHERE}, redis://127.0.0.1:4")
    with Client.from_env(node_timeout=0.05) as client:
        assert [status.address for status in client.nodes()] == ["mymaster@127.0.0.1:1", "127.0.0.1:4"]
