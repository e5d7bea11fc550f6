"""The client: the nodes that it accepts, their states, its end, and forks."""

import gc
import re
import threading
import time
import traceback
import types
import uuid
from decimal import Decimal
from fractions import Fraction
from functools import partial
from urllib.parse import urlsplit

import pytest
import redis
import redis.asyncio

from redsync import (
    AsyncClient,
    Client,
    ClientClosedError,
    ConfigurationError,
    LeaseLostError,
    NodeStatus,
    OverReleaseError,
    QuorumError,
)
from redsync._kinds import LOCKS
from redsync.testing import LocalNodes
from tests.support.locks import PATIENCE, states, timed


@pytest.fixture
def maintenance_threads():
    """Return a function that returns the running maintenance threads of this test."""

    def running():
        return {thread for thread in threading.enumerate() if thread.name == "redsync-maintenance"}

    before = running()
    return lambda: running() - before


# Nodes


def test_one_node_needs_no_list(nodes, raw):
    """A URL or a redis-py client."""
    for node in (nodes.urls[0], raw[0]):
        with Client(node, restart_guard=0) as client, client.get_lock("x"):
            assert client.quorum == 1
            assert [node.address for node in client.nodes()] == [f"127.0.0.1:{nodes.ports[0]}"]
            assert raw.keys() == [{b"redsync:x"}, *[set()] * 4]


def test_node_may_require_a_password_and_be_a_unix_socket(server_path, tmp_path, other):
    path = tmp_path / "node.sock"
    config = {"unixsocket": str(path), "requirepass": "s3cr:t/"}
    with LocalNodes(1, server=server_path, config=config) as nodes:
        for url in (nodes.urls[0].replace("redis://", "redis://:s3cr%3At%2F@"), f"unix://:s3cr%3At%2F@{path}"):
            with Client([url], node_timeout=20.0) as client:
                lock = client.get_lock("x")
                with lock:
                    assert not other.do(lock.acquire, False)
                assert states(client) == ["up"]
                assert "s3cr" not in f"{client.nodes()} {client!r}"


# Invalid settings


URL = "redis://127.0.0.1:1"
SEVERAL = "redis://127.0.0.1:1/0, redis://127.0.0.1:2/0"
CHECKED = r"has an option or a value that redis-py does not"

REFUSED = [
    *((url, "node 1 is not a valid URL") for url in ("", "localhost:6379", "http://localhost", "redis")),
    ([URL, "redis://127.0.0.1:port"], "node 2 is not a valid URL"),
    (SEVERAL, "node 1 is several URLs in one string: give a list"),
    ([SEVERAL], "node 1 is several URLs in one string: give a list"),
    *((given, None) for given in ([], (), {}, None, 6379, b"redis://127.0.0.1:1")),
    # Each connect would fail, and the node would look like one that is down.
    *(([URL, f"{URL}?{word}"], f"node 2 {CHECKED}") for word in ("unheard=of", "ssl_cert_reqs=none")),
    ([URL, "rediss://127.0.0.1:2?ssl_cert_reqs=hunter2"], f"node 2 {CHECKED}"),
    ([URL, URL], "more than once"),
    ([URL, f"{URL}/0"], "more than once"),
    # Even its password is not shown.
    ([URL, "http://:hunter2@host"], "node 2 is not a valid URL"),
    ([URL, "redis://:hunter2/@host:1"], "node 2 is not a valid URL"),
    ([URL, "redis://:1#hunter2@host:1"], "node 2 has a # in its URL"),
    ([URL, "redis+sentinel://:1#hunter2@host:1/group"], "node 2 is not a valid URL"),
    ([URL, "redis://:hunter2@host:1?socket_timeout=hunter2"], f"node 2 {CHECKED}"),
    *(
        ([URL, node], f"node 2 must be a URL string or a redis.*{type(node).__name__}$")
        for node in (
            b"redis://:hunter2@127.0.0.1:1/0",
            {"host": "h", "password": "hunter2"},
            ("redis://:hunter2@127.0.0.1:1/0",),
            ["redis://:hunter2@127.0.0.1:1/0"],
            {"hunter2"},
            types.SimpleNamespace(password="hunter2"),
            redis.ConnectionPool.from_url("redis://:hunter2@127.0.0.1:1/0"),
        )
    ),
]


@pytest.mark.parametrize("flavour", [Client, AsyncClient])
@pytest.mark.parametrize(("given", "said"), REFUSED)
def test_client_is_refused_when_its_nodes_are_no_urls_and_shows_no_password(given, said, flavour):
    with pytest.raises(ConfigurationError, match=said) as caught:
        flavour(given)
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))


def test_client_of_redis_py_must_be_of_the_same_flavour():
    for flavour, node in ((Client, redis.asyncio.Redis()), (AsyncClient, redis.Redis())):
        for given in (node, [node]):
            with pytest.raises(ConfigurationError, match=f"must be a URL string or .*, not .*{type(node).__module__}"):
                flavour(given)


def test_client_is_refused_when_one_server_has_two_addresses(nodes, raw, maintenance_threads):
    url = nodes.urls[1]
    with pytest.raises(ConfigurationError, match="same server"):
        Client([nodes.urls[0], url, url.replace("127.0.0.1", "localhost")])
    with pytest.raises(ConfigurationError):
        Client([url, raw[1]])
    assert not maintenance_threads()


async def note(event):
    """A coroutine that no client would await."""


def steps(event):
    """A generator that no client would run."""
    yield


class Listener:
    async def __call__(self, event):
        """A coroutine, too."""


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("lease", [0, -1, float("inf"), float("nan"), 0.002, "30", True, None, 10_000]),
        ("node_timeout", [0, -1, 1e10, float("inf"), float("nan"), "1", True, None]),
        ("drift_factor", [-0.1, 1, float("nan"), "0.1", True, 0.99999]),  # the last leaves nothing of the lease
        ("restart_guard", [-1, 1e10, float("nan"), float("inf"), "60", True, 0.001, 29.9]),  # less than the lease
        ("outage_timeout", [-1, float("nan"), "3", True]),
        ("listeners", [5, [5], print, [note], [Listener()], [partial(partial(Listener()))], [Listener], [steps]]),
        ("prefix", [b"bytes", None, "x" * 513, "{rs7}", "{rs7979}app:"]),
    ],
)
def test_client_is_refused_with_an_invalid_setting(nodes, option, values, maintenance_threads):
    for value in values:
        with pytest.raises(ConfigurationError, match=option.partition("_")[0]):
            Client(nodes.urls, **{option: value})
    assert not maintenance_threads()


@pytest.mark.parametrize("number", [Decimal, Fraction, int], ids=["decimal", "fraction", "int"])
def test_settings_may_be_numbers_of_any_type(nodes, number):
    settings = {"lease": number(20), "node_timeout": number(1), "drift_factor": number(0), "restart_guard": number(40)}
    settings["outage_timeout"] = number(60)
    with Client(nodes.urls, **settings) as client:
        timing = client.runner.session.timing
        assert timing == (20.0, 1.0, 0.0, 40.0, 60.0)
        assert {type(value) for value in timing} == {float}
        assert client.get_lock("x", timeout=number(1), lease=number(30), max_hold=number(60)) is not None


class Number:
    """Two, as an integer of another library."""

    def __index__(self):
        return 2


def test_numbers_may_be_integers_of_any_type(nodes):
    two = Number()
    with Client(nodes.urls, max_connections=two, restart_guard=0) as client:
        semaphore, limiter = client.get_semaphore("s", two), client.get_rate_limiter("r", two, 60)
        latch = client.get_count_down_latch("l")
        semaphore.acquire(n=two).release()
        semaphore.resize(two)
        limiter.set_rate(two)
        assert limiter.acquire(n=two)
        assert limiter.retry_after(two) > 0
        assert latch.try_set_count(two)
        assert len(client.inspect_all(limit=two)) == 2
        latch.count_down(two)
        with pytest.raises(OverReleaseError):
            semaphore.release(two)


def makers(client):
    """Return functions that make one of each synchronizer that can be lost."""
    return (
        *(kind.maker(client) for kind in LOCKS),
        client.get_read_write_lock,
        lambda name, **options: client.get_semaphore(name, 2, **options),
    )


@pytest.mark.parametrize("callback", [5, "print", note, Listener(), partial(note), partial(Listener()), steps])
def test_callback_that_can_not_be_called_is_refused_at_once(client, callback):
    for make in (*makers(client), lambda name, **options: client.locked(name, **options)(lambda: None)):
        with pytest.raises(TypeError, match="on_lost is a function that takes the hold, no"):
            make("x", on_lost=callback)


@pytest.mark.parametrize("prefix", ["redsync:", ""])
def test_no_synchronizer_has_the_key_of_a_clients_record(nodes, prefix):
    """It would be missing in lists, and a client could not write its record there."""
    with Client(nodes.urls, prefix=prefix, restart_guard=0) as client:
        name = f"redsync:client:{client.id}".removeprefix(prefix)
        others = client.get_count_down_latch, lambda name: client.get_rate_limiter(name, 2, 1.0), client.inspect
        for make in (*makers(client), *others):
            with pytest.raises(ValueError, match="the key of a client's record"):
                make(name)
        assert client.get_lock(f"{name}0").acquire(False)


def test_guard_is_one_lease_by_default_and_a_single_node_is_trusted():
    for urls, guard in (([f"{URL}{i}" for i in range(3)], 7.0), (URL, 0.0)):
        with Client(urls, lease=7.0) as client:
            assert client.runner.session.timing.restart_guard == guard


def test_error_of_fresh_nodes_says_when_they_grant():
    possible = r"2 must answer, which is possible in [0-9]+\.[0-9] s \["
    with LocalNodes(3) as nodes, nodes.client(restart_guard=30) as client, pytest.raises(QuorumError, match=possible):
        client.get_lock("x", timeout=0).__enter__()


# Settings from the environment

VARIABLES = ["REDSYNC_URLS", "REDSYNC_PREFIX", "REDSYNC_LEASE", "REDSYNC_RESTART_GUARD"]


@pytest.fixture
def environment(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_from_env_reads_all_variables(environment, nodes, raw, eventually):
    environment.setenv("REDSYNC_URLS", " , ".join(nodes.urls[:3]) + ",")
    environment.setenv("REDSYNC_PREFIX", "env:")
    environment.setenv("REDSYNC_LEASE", "7.5")
    environment.setenv("REDSYNC_RESTART_GUARD", "0")
    for i in range(3):
        nodes.restart(i)
    with Client.from_env() as client, client.get_lock("x") as hold:
        assert [status.address for status in client.nodes()] == [urlsplit(url).netloc for url in nodes.urls[:3]]
        assert 6 < hold.remaining() < 7.5
        eventually(lambda: [connection.exists("env:x") for connection in raw] == [1, 1, 1, 0, 0])
    environment.setenv("REDSYNC_LEASE", "")
    with Client.from_env(nodes.urls[1]) as client:
        assert (client.quorum, client.runner.session.timing.lease) == (1, 30.0)
    for none in ([], (), ""):
        with pytest.raises(ConfigurationError):
            Client.from_env(none)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("REDSYNC_URLS", [None, "", " , ", "localhost:6379"]),
        ("REDSYNC_LEASE", ["30s", "0", "nan"]),
        ("REDSYNC_RESTART_GUARD", ["off", "-1"]),
        ("REDSYNC_PREFIX", ["x" * 513]),
    ],
)
def test_from_env_refuses_invalid_values(environment, name, values):
    environment.setenv("REDSYNC_URLS", "redis://127.0.0.1:1")
    for value in values:
        environment.delenv(name, raising=False)
        if value is not None:
            environment.setenv(name, value)
        with pytest.raises(ConfigurationError):
            Client.from_env()


# The nodes' states


def test_client_tells_its_id_and_its_nodes_states(make_client, nodes):
    first, second = make_client(), make_client()
    assert str(uuid.UUID(first.id)) == first.id
    assert first.id != second.id
    assert first.id in repr(first)
    statuses = first.nodes()
    assert [status.address for status in statuses] == [f"127.0.0.1:{port}" for port in nodes.ports]
    for status in statuses:
        assert isinstance(status, NodeStatus)
        assert re.match(r"(redis|valkey) \d", status.version)
        assert 0 <= status.uptime < 3600
        assert (status.state, status.last_error) == ("up", None)


def test_client_made_without_a_majority_works_once_there_is_one(make_client, nodes, eventually):
    for i in range(4):
        nodes.kill(i)
    client, seconds = timed(make_client)
    assert seconds < PATIENCE
    with pytest.raises(QuorumError):
        client.get_lock("x").acquire(False)
    assert states(client) == ["down"] * 4 + ["up"]
    for i in range(4):
        nodes.restart(i)
    assert client.get_lock("x").acquire(timeout=20)
    eventually(lambda: states(client) == ["up"] * 5)


# The end


@pytest.mark.asyncio_too
@pytest.mark.usefixtures("both_flavours", "all_nodes_met")
def test_close_ends_waits_and_releases_the_holds_of_others(make_client, make_worker, raw, eventually):
    client, holder = make_client(lease=60.0), make_client()
    make_worker().do(holder.get_lock("x").acquire)
    hold = make_worker().do(client.get_lock("y").__enter__)
    calls = [client.get_lock("x").acquire, client.get_lock("x", timeout=20).__enter__, hold.wait_lost]
    waits = [make_worker().start(call) for call in calls]
    eventually(lambda: len(client.inspect("x").waiters) == 2)
    started = time.monotonic()
    client.close()
    for wait in waits:
        assert isinstance(wait.exception(20), ClientClosedError)
    assert time.monotonic() - started < PATIENCE
    eventually(lambda: raw.keys() == [{b"redsync:x"}] * 5)


def test_dropped_client_releases_and_ends_its_threads(nodes, raw, eventually, maintenance_threads):
    client = Client(nodes.urls, restart_guard=0)
    client.get_lock("x", on_lost=print).acquire()
    eventually(lambda: raw.count("redsync:x") == 5)
    assert len(maintenance_threads()) == 1
    del client
    gc.collect()
    eventually(lambda: not maintenance_threads())
    eventually(lambda: raw.keys() == [set()] * 5)


def test_client_dropped_after_a_loss_ends_its_threads(nodes, raw, eventually, maintenance_threads):
    client, told = Client(nodes.urls, lease=1.0, restart_guard=0), []
    lock = client.get_lock("x", on_lost=lambda hold, client=client: told.append(client.prefix + hold.name.encode()))
    lock.acquire()
    for node in raw:
        node.flushall()
    eventually(lambda: told)
    with pytest.raises(LeaseLostError):
        lock.release()
    del client, lock
    gc.collect()
    eventually(lambda: not maintenance_threads())
