"""Shared fixtures: real servers, clients that are always closed, other threads, and a check for leftovers.

`REDSYNC_TEST_SERVERS` lists the executables to test with, separated as in PATH. Without it the tests run the server
that `REDSYNC_SERVER` names, or else the one installed as a package: PATH differs from machine to machine.
"""

import contextlib
import faulthandler
import gc
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
import redis

from redsync import Client, Lock, Mutex
from redsync._drivers import any_maintenance
from redsync.testing import FaultProxy, LocalNodes, ServerNotFoundError
from redsync.testing.servers import find_server, pinned_server
from tests.bridge import Bridge
from tests.chaos.health import open_sockets, redsync_threads
from tests.support.leftovers import claims
from tests.support.locks import PATIENCE
from tests.support.sweeps import new_seed

SERVERS = [path for path in os.environ.get("REDSYNC_TEST_SERVERS", "").split(os.pathsep) if path]

# For all that looks for a server itself: tests, the commands and programs that they start, the docs' examples.
if server := SERVERS[0] if SERVERS else pinned_server():
    os.environ["REDSYNC_SERVER"] = str(server)

# Colours would be in all output that tests read; and a proxy does not reach this machine's servers.
os.environ.pop("FORCE_COLOR", None)
os.environ["no_proxy"] = f"127.0.0.1,{os.environ.get('no_proxy', '')}"


# Background commands of a shell without job control ignore the first two signals, commands of nohup(1) the third, and
# children inherit that; but tests need them.
USUAL = {signal.SIGINT: signal.default_int_handler, signal.SIGQUIT: signal.SIG_DFL, signal.SIGHUP: signal.SIG_DFL}
for number, handler in USUAL.items():
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)


def pytest_report_header():
    try:
        return [f"server: {each}" for each in SERVERS or [find_server()]]
    except ServerNotFoundError as error:
        return [str(error)]


def pytest_collection_finish():
    # pytest's data about eight thousand tests is never garbage: scanning it takes 0.3 s each time.
    gc.collect()
    gc.freeze()


def pytest_unconfigure():
    # A thread that waits forever after a failed test would keep this process from exiting.
    faulthandler.dump_traceback_later(600, exit=True)


def pytest_generate_tests(metafunc):
    if SERVERS and "server_path" in metafunc.fixturenames:
        metafunc.parametrize("server_path", SERVERS, scope="session")
    if "both_flavours" in metafunc.fixturenames:
        marks = {mark.name for mark in metafunc.definition.iter_markers()}
        asyncio = pytest.param("asyncio", marks=() if "asyncio_too" in marks else pytest.mark.sweep)
        metafunc.parametrize("flavour", ["threads"] if "threads_only" in marks else ["threads", asyncio], indirect=True)


@pytest.fixture(autouse=True)
def _levels_of_loggers() -> Iterator[None]:
    """Commands and programs set them for their whole process; some tests run these in ours."""
    loggers = [logging.getLogger(name) for name in ("redsync", "redsync.watchdog", "redsync.node")]
    before = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, before, strict=True):
        logger.setLevel(level)


@pytest.fixture(scope="session")
def bridge() -> Iterator[Bridge]:
    """An event loop for the tests that run in both flavours."""
    bridge = Bridge()
    yield bridge
    bridge.end()


@pytest.fixture
def flavour(request) -> str:
    """The kind of clients that `make_client` makes: "threads", or "asyncio" behind the methods of those."""
    return getattr(request, "param", "threads")


@pytest.fixture
def both_flavours(flavour):
    """Run a test for threads and, in sweeps, for asyncio; see the marks `asyncio_too` and `threads_only`.

    Facades of both flavours are the same lines over the same protocols: other tests cover the differences between
    drivers.
    """


@pytest.fixture(scope="session")
def server_path() -> str | None:
    """The path of the server to run; None to search for one."""
    return None


@pytest.fixture(scope="session")
def _redsync_shared_nodes(server_path):
    """Replaces the plugin's own fixture, so that `redsync_nodes` too runs the listed servers."""
    with LocalNodes(5, server=server_path) as nodes:
        yield nodes


@pytest.fixture
def nodes(redsync_nodes, monkeypatch) -> LocalNodes:
    """Five nodes, running and empty; on a busy machine clients wait a little longer for their first connections."""
    monkeypatch.setattr(any_maintenance, "STRAGGLERS", 0.5)
    return redsync_nodes


class Worker:
    """One other thread, so one other owner, that acts on request."""

    def __init__(self):
        self._pool = ThreadPoolExecutor(1)

    def start(self, function: Callable, *args, **kwargs) -> Future:
        return self._pool.submit(function, *args, **kwargs)

    def do(self, function: Callable, *args, **kwargs):
        return self.start(function, *args, **kwargs).result(PATIENCE)

    def end(self):
        self._pool.shutdown()


@pytest.fixture
def make_worker() -> Iterator[Callable[[], Worker]]:
    """Start other threads; they have ended when the test is over."""
    workers = []

    def make():
        workers.append(Worker())
        return workers[-1]

    yield make
    for worker in workers:
        worker.end()


@pytest.fixture
def other(make_worker) -> Worker:
    """One other thread."""
    return make_worker()


@pytest.fixture
def all_nodes_met():
    """Makes the test's clients connect to every node first, so that each claim reaches all of them."""


@pytest.fixture
def make_client(nodes, flavour, make_worker, eventually, request) -> Iterator[Callable[..., Client]]:
    """Make clients, by default of all nodes, that are closed before the test joins other threads.

    Rounds wait for nodes for up to a second: a busy machine may pause for that long.
    """
    clients = []
    meet_all = "all_nodes_met" in request.fixturenames

    def make(urls=None, *, n=5, **options):
        make_one = Client if flavour == "threads" else request.getfixturevalue("bridge").connect
        options = {"restart_guard": 0.0, "node_timeout": 1.0, **options}
        client = make_one(nodes.urls[:n] if urls is None else urls, **options)
        clients.append(client)
        if meet_all:
            eventually(lambda: all(node.state != "down" or node.last_error for node in client.nodes()))
        return client

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def events() -> list[object]:
    """Where a test's clients report events, if it makes them do so."""
    return []


@pytest.fixture
def client(make_client) -> Client:
    """A client of all nodes."""
    return make_client()


@pytest.fixture
def lock(client) -> Lock:
    return client.get_lock("x")


@pytest.fixture
def mutex(client) -> Mutex:
    return client.get_mutex("x")


@pytest.fixture
def proxies(nodes):
    """A proxy before each node, for faults of the network."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(FaultProxy(port)) for port in nodes.ports]


@pytest.fixture
def seed():
    """A seed that is printed with a failure; `REDSYNC_TEST_SEED` repeats a run."""
    return new_seed()


class Raw(list[redis.Redis]):
    """Plain connections to all nodes, to look past redsync."""

    def keys(self, pattern: str = "*") -> list[set[bytes]]:
        """Return the keys on each node, without the records of clients and of the node's birth."""
        return [set(claims(node, pattern)) for node in self]

    def count(self, key: str | bytes) -> int:
        """Return how many nodes have the key."""
        return sum(node.exists(key) for node in self)


@pytest.fixture
def raw(nodes) -> Iterator[Raw]:
    connections = Raw(redis.Redis.from_url(url) for url in nodes.urls)
    yield connections
    for connection in connections:
        connection.close()


@pytest.fixture(scope="session")
def eventually():
    """Wait until a condition is true."""

    def wait(condition: Callable[[], object], within: float = PATIENCE):
        deadline = time.monotonic() + within
        while not (result := condition()):
            assert time.monotonic() < deadline, f"it did not happen within {within:g} s"
            time.sleep(0.005)
        return result

    return wait


@pytest.fixture(scope="session")
def promptly():
    """Return a function that repeats a call until it takes no longer than promised, and returns the seconds it took.

    A machine that stalls makes one try late, a bug makes all of them late. The call may return the seconds itself, if
    not all of its time counts.
    """

    def promptly(function: Callable[[], float | None], within: float) -> float:
        gives_up_at = time.monotonic() + PATIENCE
        while True:
            started_at = time.monotonic()
            told = function()
            took = time.monotonic() - started_at if told is None else told
            if took < within:
                return took
            assert time.monotonic() < gives_up_at, f"it takes {took:.3f} s, and never less than {within:g} s"

    return promptly


# Leftovers of a test.


@pytest.fixture(autouse=True)
def _nothing_is_left_behind(request, flavour):
    """Fail a test that leaves threads or tasks of ours running, or sockets open."""
    bridge = request.getfixturevalue("bridge") if flavour == "asyncio" else None
    threads, sockets = redsync_threads(), open_sockets()
    yield
    deadline = time.monotonic() + PATIENCE
    while (left := redsync_threads() - threads) or open_sockets() - sockets:
        # Frames of a caught exception keep their objects alive; a thread ends a moment after its last step.
        gc.collect()
        if time.monotonic() > deadline:
            pytest.fail(f"left behind: {[thread.name for thread in left]}, sockets {open_sockets() - sockets}")
        time.sleep(0.01)
    assert bridge is None or bridge.tasks() == []
