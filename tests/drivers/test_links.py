"""Links of the driver for threads: their descriptors after the last use, and the size of one read."""

import contextlib
import gc
import os
import socket
import ssl
import weakref
from types import SimpleNamespace

import pytest
import redis

from redsync._core.replies import ReplyReader
from redsync._drivers.given_nodes import make_nodes
from redsync._drivers.links import SocketLink, TlsLink, make_link
from tests.support.hostile import Hostile, greeting


@pytest.fixture
def collector_off():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class TlsServer(Hostile):
    """Greets like a node, over TLS."""

    def __init__(self, certificate):
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(*map(str, certificate))
        super().__init__(lambda words: [greeting(words) or b"+OK\r\n"])

    def _serve(self, connection):
        with contextlib.suppress(OSError, ValueError):
            super()._serve(self._context.wrap_socket(connection, server_side=True))


@pytest.fixture
def behind_tls(certificate):
    """The URL of a server that looks like a node behind TLS."""
    with TlsServer(certificate) as server:
        yield f"rediss://127.0.0.1:{server.port}?ssl_ca_certs={certificate[0]}"


def is_open(fd):
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


@pytest.mark.parametrize("kind", [SocketLink, TlsLink])
def test_link_closes_its_descriptor_as_soon_as_its_last_user_has_left(kind, nodes, request, collector_off):
    url = nodes.urls[0] if kind is SocketLink else request.getfixturevalue("behind_tls")
    node = make_nodes([url], redis.Redis)[0]
    channel = node.open(5.0)
    link = make_link(node, channel)
    del channel
    assert type(link) is kind
    link.write(b"PING\r\n")
    fd, gone = link.fileno, weakref.ref(link)
    assert is_open(fd)
    del link
    assert gone() is None
    assert not is_open(fd)


def test_link_whose_making_was_interrupted_has_nothing_to_close():
    SocketLink.__new__(SocketLink).__del__()


class Endless:
    """A TLS socket that always has more data, some of it already read from the kernel."""

    family = socket.AF_UNIX

    def __init__(self, ahead):
        self.ahead = ahead
        self.taken = 0

    def recv(self, size):
        self.taken += 1
        return b"x" * size

    def pending(self):
        return 1 if self.taken < self.ahead else 0

    def send(self, data):
        return len(data)

    def setblocking(self, _):
        pass

    def fileno(self):
        return 99

    def close(self):
        pass


@pytest.mark.parametrize(("ahead", "taken"), [(0, 4), (7, 7)])
def test_tls_read_ends_while_the_node_keeps_sending_and_leaves_no_data_hidden_from_polls(ahead, taken):
    node = make_nodes(["rediss://a"], redis.Redis)[0]
    sock = Endless(ahead)
    link = TlsLink(node, SimpleNamespace(connection=SimpleNamespace(_sock=sock), sock=sock, reader=ReplyReader()))
    assert len(link.read()) == taken * 16384
    assert sock.taken == taken
