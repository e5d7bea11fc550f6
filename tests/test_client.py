"""The client: which nodes it takes, what it says of them, how it ends, and what becomes of it in a fork."""

import gc
import pickle
import subprocess
import sys
import textwrap
import threading
import time
import traceback
import types
import uuid
from urllib.parse import urlsplit

import pytest
import redis
import redis.asyncio

from redsync import AsyncClient, Client, ClientClosedError, ConfigurationError, NodeChanged, NodeStatus, QuorumError
from redsync.testing import LocalNodes
from tests.support.locks import PATIENCE, timed


def states(client):
    return [status.state for status in client.nodes()]


@pytest.fixture
def maintenance_threads():
    """Return a function that gives the maintenance threads which this test has started and that still run."""

    def running():
        return {thread for thread in threading.enumerate() if thread.name == "redsync-maintenance"}

    before = running()
    return lambda: running() - before


# Nodes


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_lock_works_on_any_number_of_nodes(make_client, other, raw, eventually, n):
    client = make_client(n=n)
    assert client.quorum == {1: 1, 2: 2, 3: 2, 5: 3}[n]
    lock = client.get_lock("x")
    with lock as hold:
        assert lock.acquire(False)
        assert not other.do(lock.acquire, timeout=0.1)
        lock.extend()
        lock.release()
        eventually(lambda: raw.count("redsync:x") == n)
        assert len(client.inspect("x").votes) == n
        hold.check()
    eventually(lambda: raw.count("redsync:x") == 0)
    assert other.do(lock.acquire, False)


def test_nodes_may_be_clients_of_redis_py(nodes, raw, other, eventually):
    before = [len(connection.connection_pool._available_connections) for connection in raw]
    with Client([raw[0], nodes.urls[1], raw[2]], restart_guard=0) as client:
        lock = client.get_lock("x")
        with lock:
            assert not other.do(lock.acquire, False)
            eventually(lambda: raw.count("redsync:x") == 3)
    assert [connection.ping() for connection in raw] == [True] * 5
    assert [len(connection.connection_pool._available_connections) for connection in raw[3:]] >= before[3:]


def test_one_url_as_text_is_one_node(nodes, both_flavours, make_client):
    client = make_client(nodes.urls[0])
    with client.get_lock("x"):
        assert [node.address for node in client.nodes()] == [f"127.0.0.1:{nodes.ports[0]}"]
    assert client.quorum == 1


def test_one_client_of_redis_py_is_one_node(raw):
    with Client(raw[0]) as client, client.get_lock("x"):
        assert client.quorum == 1
        assert raw.keys() == [{b"redsync:x"}, *[set()] * 4]


def test_client_of_one_url_is_pickled_as_that_of_a_list(nodes):
    with Client(nodes.urls[0]) as client:
        assert pickle.loads(pickle.dumps(client)) is client


def test_node_may_be_a_unix_socket(server_path, tmp_path, other):
    path = tmp_path / "node.sock"
    with (
        LocalNodes(1, server=server_path, config={"unixsocket": str(path)}),
        Client([f"unix://{path}"]) as client,
    ):
        lock = client.get_lock("x")
        with lock:
            assert not other.do(lock.acquire, False)
        assert client.nodes()[0].address == str(path)
        assert states(client) == ["up"]


def test_node_may_want_a_password(server_path, other):
    with LocalNodes(2, server=server_path, config={"requirepass": "s3cr:t/"}) as nodes:
        urls = [url.replace("redis://", "redis://:s3cr%3At%2F@") for url in nodes.urls]
        with Client(urls, restart_guard=0) as client:
            lock = client.get_lock("x")
            with lock:
                assert not other.do(lock.acquire, False)
            assert all("s3cr" not in str(status) for status in client.nodes())
            assert "s3cr" not in repr(client)


def test_wrong_password_is_told_by_the_first_operation(server_path):
    with LocalNodes(1, server=server_path, config={"requirepass": "secret"}) as nodes, nodes.client() as client:
        with pytest.raises(QuorumError) as info:
            client.get_lock("x").acquire(False)
        assert "auth" in info.value.votes[0].detail.lower()


def test_database_of_the_url_is_used(make_client, nodes, raw, eventually):
    client = make_client([url.removesuffix("/0") + "/3" for url in nodes.urls])
    with client.get_lock("x"):
        assert client.get_lock("x").locked()
        assert raw.keys() == [set()] * 5
        for url in nodes.urls:
            with redis.Redis.from_url(url.removesuffix("/0") + "/3") as connection:
                eventually(lambda: connection.exists("redsync:x"))


# Settings that can't be


@pytest.mark.parametrize("nodes_given", [[], (), {}, None, 6379, "", b"redis://127.0.0.1:1", bytearray(b"x")])
def test_client_is_refused_without_a_node(nodes_given):
    with pytest.raises(ConfigurationError):
        Client(nodes_given)


@pytest.mark.parametrize("node", ["", "localhost:6379", "http://localhost", "redis", "redis://127.0.0.1:port"])
def test_client_is_refused_when_a_node_is_no_url(node):
    for given in ([node], node):
        with pytest.raises(ConfigurationError, match="node 1 is no URL"):
            Client(given)


@pytest.mark.parametrize("flavour", [Client, AsyncClient])
def test_text_with_several_urls_is_refused_for_it_would_be_one_node(flavour):
    text = "redis://127.0.0.1:1/0, redis://127.0.0.1:2/0"
    for given in (text, [text]):
        with pytest.raises(ConfigurationError, match="node 1 is several URLs in one text: give a list"):
            flavour(given)


SECRETIVE = [
    b"redis://:hunter2@127.0.0.1:1/0",
    {"host": "h", "password": "hunter2"},
    ("redis://:hunter2@127.0.0.1:1/0",),
    ["redis://:hunter2@127.0.0.1:1/0"],
    {"hunter2"},
    types.SimpleNamespace(password="hunter2"),
    redis.ConnectionPool.from_url("redis://:hunter2@127.0.0.1:1/0"),
]


@pytest.mark.parametrize("flavour", [Client, AsyncClient])
@pytest.mark.parametrize("node", SECRETIVE, ids=lambda node: type(node).__name__)
def test_node_of_another_type_is_told_by_place_and_type_and_never_shown(node, flavour):
    with pytest.raises(ConfigurationError, match="node 2 must be a URL as text or a redis") as caught:
        flavour(["redis://127.0.0.1:1", node])
    assert type(node).__name__ in str(caught.value)
    if not isinstance(node, tuple | list | set):
        with pytest.raises(ConfigurationError, match="must be a URL as text or a redis") as caught:
            flavour(node)
        assert type(node).__name__ in str(caught.value)
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))


def test_client_is_refused_when_a_node_is_of_the_other_flavour():
    for flavour, node in ((Client, redis.asyncio.Redis()), (AsyncClient, redis.Redis())):
        for given in (node, [node]):
            with pytest.raises(
                ConfigurationError, match=f"must be a URL as text or a .*, not .*{type(node).__module__}"
            ):
                flavour(given)


def test_client_is_refused_when_a_url_is_listed_twice(nodes):
    with pytest.raises(ConfigurationError, match="more than once"):
        Client([nodes.urls[0], nodes.urls[1], nodes.urls[0]])
    with pytest.raises(ConfigurationError, match="more than once"):
        Client([nodes.urls[0], nodes.urls[0].removesuffix("0") + "1"])


def test_client_is_refused_when_one_server_has_two_addresses(nodes, maintenance_threads):
    url = nodes.urls[1]
    with pytest.raises(ConfigurationError, match="same server"):
        Client([nodes.urls[0], url, url.replace("127.0.0.1", "localhost")])
    assert not maintenance_threads()


def test_client_is_refused_when_a_url_and_a_redis_are_one_server(nodes, raw):
    with pytest.raises(ConfigurationError):
        Client([nodes.urls[0], raw[0]])


@pytest.mark.parametrize(
    "options",
    [
        {"lease": 0},
        {"lease": -1},
        {"lease": float("inf")},
        {"lease": float("nan")},
        {"lease": 0.002},
        {"node_timeout": 0},
        {"node_timeout": -1},
        {"node_timeout": float("inf")},
        {"node_timeout": float("nan")},
        {"drift_factor": -0.1},
        {"drift_factor": 1},
        {"drift_factor": float("nan")},
        {"lease": 0.01, "drift_factor": 0.9},
        {"restart_guard": -1},
        {"restart_guard": float("nan")},
        {"restart_guard": float("inf")},
        {"prefix": b"bytes"},
        {"prefix": None},
        {"prefix": "x" * 513},
    ],
    ids=str,
)
def test_client_is_refused_when_a_setting_can_not_be(nodes, options, maintenance_threads):
    with pytest.raises(ConfigurationError):
        Client(nodes.urls, **options)
    assert not maintenance_threads()


def test_client_takes_its_settings_by_name_only(nodes):
    with pytest.raises(TypeError):
        Client(nodes.urls, "prefix:")


def test_node_timeout_bounds_the_wait_for_a_hung_majority(make_client, nodes, promptly):
    lock = make_client(node_timeout=0.1).get_lock("x")
    for i in range(3):
        nodes.pause(i)

    def try_in_vain():
        with pytest.raises(QuorumError):
            lock.acquire(False)

    assert promptly(try_in_vain, 1.0) >= 0.1


def test_prefix_may_be_empty(make_client, raw, eventually):
    with make_client(prefix="").get_lock("x"):
        eventually(lambda: raw.keys() == [{b"x"}] * 5)


# Nodes that may have lost their memory


def test_lease_and_drift_factor_of_a_client_are_those_of_its_holds(make_client, raw, eventually):
    with make_client(lease=15, drift_factor=0.2).get_lock("x") as hold:
        assert 7 < hold.remaining() <= 15 * 0.8 - 0.002
        eventually(lambda: all(9_000 < node.pttl("redsync:x") <= 15_000 for node in raw))


def test_restarted_nodes_are_kept_out_of_new_grants_for_one_lease_by_default(nodes, eventually):
    for i in range(3):
        nodes.restart(i)
    with Client(nodes.urls[:3], lease=1.0) as client:
        assert states(client) == ["quarantined"] * 3
        lock = client.get_lock("x")
        with pytest.raises(QuorumError, match="restart_guard"):
            lock.acquire(False)
        assert lock.acquire(timeout=20)
        eventually(lambda: states(client) == ["up"] * 3)


def test_single_restarted_node_is_trusted_by_default(nodes):
    nodes.restart(0)
    with Client(nodes.urls[:1]) as client:
        assert states(client) == ["up"]
        assert client.get_lock("x").acquire(False)


def test_restart_guard_may_be_switched_off(nodes):
    for i in range(3):
        nodes.restart(i)
    with Client(nodes.urls[:3], restart_guard=0) as client:
        assert client.get_lock("x").acquire(False)


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


def test_from_env_guards_against_restarted_nodes(environment, nodes):
    environment.setenv("REDSYNC_URLS", nodes.urls[0])
    environment.setenv("REDSYNC_RESTART_GUARD", "20")
    nodes.restart(0)
    with Client.from_env() as client:
        assert states(client) == ["quarantined"]


def test_from_env_takes_one_url(environment, nodes):
    environment.setenv("REDSYNC_URLS", nodes.urls[0])
    for client in (Client.from_env(), Client.from_env(nodes.urls[1])):
        with client, client.get_lock("x"):
            assert client.quorum == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("REDSYNC_URLS", None),
        ("REDSYNC_URLS", ""),
        ("REDSYNC_URLS", " , "),
        ("REDSYNC_URLS", "localhost:6379"),
        ("REDSYNC_LEASE", ""),
        ("REDSYNC_LEASE", "30s"),
        ("REDSYNC_LEASE", "0"),
        ("REDSYNC_LEASE", "nan"),
        ("REDSYNC_RESTART_GUARD", "off"),
        ("REDSYNC_RESTART_GUARD", "-1"),
        ("REDSYNC_PREFIX", "x" * 513),
    ],
)
def test_from_env_refuses_what_can_not_be(environment, name, value):
    environment.setenv("REDSYNC_URLS", "redis://127.0.0.1:1")
    if value is None:
        environment.delenv(name)
    else:
        environment.setenv(name, value)
    with pytest.raises(ConfigurationError):
        Client.from_env()


# Looking at nodes


def test_id_is_a_uuid_of_its_own(make_client):
    first, second = make_client(), make_client()
    assert str(uuid.UUID(first.id)) == first.id
    assert first.id != second.id
    assert first.id in repr(first)


def test_nodes_tell_of_each_node(client, nodes):
    statuses = client.nodes()
    assert [status.address for status in statuses] == [f"127.0.0.1:{port}" for port in nodes.ports]
    for status in statuses:
        assert isinstance(status, NodeStatus)
        assert status.state == "up"
        assert status.version.split()[0] in {"redis", "valkey"}
        assert status.version.split()[1][0].isdigit()
        assert 0 <= status.uptime < 3600
        assert status.last_error is None


def test_nodes_tell_of_a_dead_node_until_it_is_back(client, nodes, eventually):
    nodes.kill(1)
    eventually(lambda: states(client) == ["up", "down", "up", "up", "up"])
    assert client.nodes()[1].last_error
    nodes.restart(1)
    eventually(lambda: states(client) == ["up"] * 5)
    assert client.nodes()[1].last_error


def test_nodes_tell_of_a_hung_node_until_it_answers(make_client, nodes, eventually):
    client = make_client(node_timeout=0.1)
    nodes.pause(4)
    with client.get_lock("x"):
        eventually(lambda: states(client) == ["up", "up", "up", "up", "suspect"])
        assert "owes" in client.nodes()[4].last_error
    nodes.resume(4)
    eventually(lambda: states(client) == ["up"] * 5)


def test_listener_gets_each_change_of_a_node(make_client, nodes, eventually):
    events = []
    make_client(listeners=[events.append])
    nodes.kill(3)
    eventually(lambda: events)
    nodes.restart(3)
    eventually(lambda: len(events) == 2)
    assert all(isinstance(event, NodeChanged) for event in events)
    assert [(event.node, event.state) for event in events] == [
        (f"127.0.0.1:{nodes.ports[3]}", "down"),
        (f"127.0.0.1:{nodes.ports[3]}", "up"),
    ]
    assert events[0].reason


def test_client_is_made_without_a_majority_and_works_when_it_is_there(make_client, nodes, eventually):
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


def test_close_releases_what_all_threads_hold(make_client, make_worker, raw, eventually):
    client = make_client()
    client.get_lock("mine").acquire()
    client.get_lock("mine").acquire()
    for name in ("theirs", "others"):
        make_worker().do(client.get_lock(name).acquire)
    eventually(lambda: raw.count("redsync:others") == 5)
    client.close()
    eventually(lambda: raw.keys() == [set()] * 5)


def test_close_lets_waiters_go(make_client, other, make_worker, raw, eventually):
    client, holder = make_client(), make_client()
    make_worker().do(holder.get_lock("x").acquire)
    waiter = other.start(client.get_lock("x").acquire)
    watcher = make_worker().start(client.get_lock("x", timeout=20).__enter__)
    eventually(lambda: len(client.inspect("x").waiters) == 2)
    started = time.monotonic()
    client.close()
    for waiting in (waiter, watcher):
        assert isinstance(waiting.exception(20), ClientClosedError)
    assert time.monotonic() - started < PATIENCE
    eventually(lambda: raw.keys() == [{b"redsync:x"}] * 5)


def test_close_does_nothing_the_second_time(make_client, maintenance_threads):
    client = make_client()
    client.close()
    client.close()
    assert not maintenance_threads()


def test_client_is_closed_at_the_end_of_its_with(nodes, raw, eventually):
    with Client(nodes.urls, restart_guard=0) as client:
        assert isinstance(client, Client)
        client.get_lock("x").acquire()
    with pytest.raises(ClientClosedError):
        client.get_lock("x").acquire()
    eventually(lambda: raw.keys() == [set()] * 5)


@pytest.mark.parametrize("harm", ["kill", "pause"])
def test_close_takes_no_long_time_when_nodes_do_not_answer(make_client, nodes, harm, maintenance_threads):
    client = make_client()
    client.get_lock("x").acquire()
    for i in range(4):
        getattr(nodes, harm)(i)
    started = time.monotonic()
    client.close()
    assert time.monotonic() - started < PATIENCE
    assert not maintenance_threads()


def test_close_of_one_client_leaves_others_alone(make_client):
    first, second = make_client(), make_client()
    with second.get_lock("x") as hold:
        first.close()
        hold.extend()
        hold.check()


def test_forgotten_client_releases_and_ends_its_threads(nodes, raw, eventually, maintenance_threads):
    client = Client(nodes.urls, restart_guard=0)
    client.get_lock("x").acquire()
    eventually(lambda: raw.count("redsync:x") == 5)
    assert len(maintenance_threads()) == 1
    del client
    gc.collect()
    eventually(lambda: not maintenance_threads())
    eventually(lambda: raw.keys() == [set()] * 5)


def test_lock_keeps_its_client_alive(nodes):
    lock = Client(nodes.urls, restart_guard=0).get_lock("x")
    gc.collect()
    assert lock.acquire(False)
    lock.release()


def test_client_may_be_used_by_many_threads(nodes, make_worker, maintenance_threads):
    with Client(nodes.urls, restart_guard=0) as client:

        def work(name):
            for _ in range(20):
                with client.get_lock(name), client.get_lock(f"{name} inner"):
                    pass
            return True

        tasks = [make_worker().start(work, f"name {number % 3}") for number in range(6)]
        assert all(task.result(20) for task in tasks)
        assert len(maintenance_threads()) == 1


# fork


def run_python(nodes, program):
    """Run a program with `client` on the nodes and return what it printed; a fork needs a process of its own."""
    preamble = f"""
        import os, sys, threading, time
        from redsync import AsyncClient, Client, LeaseLostError, NotOwnedError
        client = Client({nodes.urls!r}, restart_guard=0, lease=0.9)
        lock = client.get_lock("x")

        def in_child(function):
            sys.stdout.flush()
            pid = os.fork()
            if pid:
                return pid
            try:
                function()
                sys.stdout.flush()
            except BaseException as error:
                print("child:", repr(error), flush=True)
            os._exit(0)
    """
    source = textwrap.dedent(preamble) + textwrap.dedent(program)
    # Python 3.12 and later warn of every fork while there are threads; how we get along with one is what is tested.
    command = [sys.executable, "-W", "ignore:This process:DeprecationWarning", "-c", source]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_child_of_a_fork_has_another_id_and_holds_nothing(nodes):
    lines = run_python(
        nodes,
        """
        hold = lock.__enter__()

        def child():
            print(client.id)
            print(lock.owned(), lock.hold_count(), lock.remaining(), hold.remaining())
            print(lock.acquire(False))
            try:
                lock.release()
            except NotOwnedError:
                print("NotOwnedError")
            with client.get_lock("y") as own:
                print(own.owner.startswith(client.id))

        print(client.id)
        os.waitpid(in_child(child), 0)
        print(lock.owned())
        lock.release()
        """,
    )
    parent, child, *rest = lines
    assert parent != child
    assert uuid.UUID(parent) != uuid.UUID(child)
    assert rest == ["False 0 0.0 0.0", "False", "NotOwnedError", "True", "True"]


def test_hold_of_the_parent_stays_valid_after_the_child_has_ended(nodes):
    lines = run_python(
        nodes,
        """
        with lock as hold:
            os.waitpid(in_child(lambda: print(client.get_lock("y").acquire())), 0)
            os.waitpid(in_child(lambda: client.close()), 0)
            pid = os.fork()
            if not pid:
                sys.exit()  # with all finalizers
            os.waitpid(pid, 0)
            until = time.monotonic() + 1.2
            while time.monotonic() < until:
                hold.check()
                time.sleep(0.05)
            hold.extend()
            print("valid", lock.acquire(False))
            lock.release()
        """,
    )
    assert lines == ["True", "valid True"]


def test_child_inside_with_of_its_parent_does_not_release_it(nodes):
    lines = run_python(
        nodes,
        """
        pid = None

        def child():
            pass

        with lock:
            pid = os.fork()
            if pid:
                os.waitpid(pid, 0)
                print("parent", lock.owned())
                lock.extend()
            else:
                sys.stderr = open(os.devnull, "w")
        print("parent", lock.locked(), flush=True)
        """,
    )
    assert lines == ["parent True", "parent False"]


@pytest.mark.parametrize("url", ["http://:secret@host", "redis://:secret@host:port", "redis://:secret/@host:1"])
def test_url_that_is_none_is_told_without_its_password(url):
    with pytest.raises(ConfigurationError, match="node 2 is no URL such as") as caught:
        Client(["redis://127.0.0.1:1", url])
    assert "secret" not in str(caught.value)
    assert caught.value.__suppress_context__, "redis-py's error may quote it"
