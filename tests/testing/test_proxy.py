"""FaultProxy: each fault seen from a raw connection to a real server behind it."""

import gc
import socket
import threading
import time

import pytest

from redsync.testing import FaultProxy, LocalNodes
from redsync.testing.servers import ask

SOON = 0.05  # how long to wait for what must not come
LATE = 5.0


@pytest.fixture(scope="module")
def shared():
    with LocalNodes(1) as nodes:
        yield nodes


@pytest.fixture
def node(shared):
    shared.reset()
    return shared.ports[0]


@pytest.fixture
def proxy(node):
    with FaultProxy(node) as proxy:
        yield proxy


class Connection:
    """A raw connection through the proxy, already passed on to the node unless stated otherwise."""

    def __init__(self, proxy, *, shake_hands=True):
        self.socket = socket.create_connection(("127.0.0.1", proxy.port), LATE)
        if shake_hands:
            assert self.ask("PING") == b"+PONG\r\n"

    def send(self, command):
        self.socket.sendall(command.encode() + b"\r\n")

    def receive(self, timeout=LATE):
        self.socket.settimeout(timeout)
        return self.socket.recv(65536)

    def ask(self, command):
        self.send(command)
        return self.receive()

    def is_silent(self):
        with pytest.raises(TimeoutError):
            self.receive(SOON)
        return True

    def is_reset(self):
        with pytest.raises(ConnectionResetError):
            self.receive()
        return True


@pytest.fixture
def connect(proxy):
    made = []

    def connect(**options):
        made.append(Connection(proxy, **options))
        return made[-1]

    yield connect
    for connection in made:
        connection.socket.close()


def is_not_accepted(proxy):
    """A reset may come while connecting or after it."""
    with pytest.raises(ConnectionResetError), socket.create_connection(("127.0.0.1", proxy.port), LATE) as connection:
        connection.recv(1)
    return True


def exists(node, key):
    return ask(node, f"EXISTS {key}") == b":1\r\n"


def test_proxy_passes_bytes_on_without_faults(proxy, connect, node, eventually):
    assert proxy.url == f"redis://127.0.0.1:{proxy.port}/0"
    first, second = connect(), connect()
    first.send("SET a 1\r\nGET a\r\nGET b")
    assert second.ask("ECHO second") == b"$6\r\nsecond\r\n"
    eventually(lambda: exists(node, "a"))
    received = b""
    while len(received) < 17:
        received += first.receive()
    assert received == b"+OK\r\n$1\r\n1\r\n$-1\r\n"


def test_proxy_reaches_the_server_again_when_it_restarted(shared, connect):
    before = connect()
    shared.kill(0)
    assert before.receive() == b""
    shared.restart(0)
    connect()


def test_delay_holds_each_way(proxy, connect):
    connection = connect()
    proxy.delay = 0.05
    started_at = time.monotonic()
    assert connection.ask("PING") == b"+PONG\r\n"
    assert time.monotonic() - started_at >= 0.1


@pytest.mark.parametrize("fault", ["drop_requests", "drop_replies"])
def test_dropped_bytes_are_gone_and_heal_resets_their_connections(fault, proxy, connect, node, eventually):
    spared, broken = connect(), connect()
    setattr(proxy, fault, True)
    broken.send("SET key value")
    if fault == "drop_replies":
        eventually(lambda: exists(node, "key"))
    assert broken.is_silent()
    assert exists(node, "key") is (fault == "drop_replies"), "executed or not"
    proxy.heal()
    assert broken.is_reset()
    assert spared.ask("PING") == b"+PONG\r\n"


def test_blackhole_delivers_late_what_a_gone_client_sent(proxy, connect, node, eventually):
    connection = connect()
    proxy.blackhole = True
    connection.send("SET key value")
    connection.socket.close()
    time.sleep(SOON)
    assert not exists(node, "key")
    proxy.heal()
    eventually(lambda: exists(node, "key"))


def test_cut_resets_all_connections_but_not_new_ones(proxy, connect, node, eventually):
    connections = [connect(), connect(), connect(shake_hands=False)]
    proxy.cut()
    assert all(connection.is_reset() for connection in connections)
    eventually(lambda: ask(node, "CLIENT LIST").count(b"id=") == 1)
    connect()


def test_refuse_resets_new_connections_only(proxy, connect):
    before = connect()
    proxy.refuse = True
    assert is_not_accepted(proxy)
    assert before.ask("PING") == b"+PONG\r\n"
    proxy.refuse = False
    connect()


def test_half_replies_delivers_a_half_and_closes(proxy, connect):
    connection = connect()
    proxy.half_replies = True
    assert connection.ask("ECHO 12345678") == b"$8\r\n123"
    assert connection.receive() == b""
    assert not proxy.half_replies
    connect()


def test_garbage_replaces_one_reply(proxy, connect):
    connection = connect()
    proxy.garbage = True
    assert connection.ask("PING")[:1] not in b"+-:$*_#,(!=%~>|"
    assert not proxy.garbage
    assert connection.ask("PING") == b"+PONG\r\n"


def test_heal_switches_every_fault_off(proxy, connect):
    faults = ("drop_requests", "drop_replies", "refuse", "half_replies", "garbage", "blackhole")
    for fault in faults:
        setattr(proxy, fault, True)
    proxy.delay = 60.0
    proxy.heal()
    assert not any(getattr(proxy, fault) for fault in faults)
    assert proxy.delay == 0.0
    connect()


def test_switch_in_the_middle_of_a_close_returns(node):
    for _ in range(20):
        proxy = FaultProxy(node)
        closing = threading.Timer(0.005, proxy.close)
        switching = threading.Thread(target=lambda proxy=proxy: [proxy.heal() for _ in range(100)], daemon=True)
        closing.start()
        switching.start()
        closing.join()
        switching.join(LATE)
        assert not switching.is_alive()


@pytest.mark.parametrize("port", [0, -1, 65536, "redis://127.0.0.1:6379/0", True, None])
def test_target_that_is_no_port_is_refused(port):
    with pytest.raises(ValueError, match="target_port must be a server's port, from 1 to 65535, not"):
        FaultProxy(port)


def test_close_resets_connections_and_leaves_no_port_thread_or_socket(node):
    threads = threading.active_count()
    with FaultProxy(node) as proxy:
        connection, *others = [Connection(proxy, shake_hands=not i) for i in range(20)]
        assert threading.active_count() == threads + 1
    proxy.close()
    assert threading.active_count() == threads
    assert connection.is_reset()
    with pytest.raises(ConnectionRefusedError):
        Connection(proxy)
    for each in (connection, *others):
        each.socket.close()
    del proxy
    gc.collect()  # a socket left open would warn, and a warning is an error
