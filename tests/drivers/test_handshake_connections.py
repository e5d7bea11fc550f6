"""Handshakes are bounded in bytes and time, and an error is a reply like any other; asyncio holds them likewise."""

import contextlib
import socket
from itertools import islice

import hiredis
import pytest
import redis

from redsync._core.replies import MOST_BYTES
from redsync._drivers import handshake_connections
from redsync._drivers.environment import clock
from redsync._drivers.handshake_connections import pack
from redsync._drivers.nodes import make_nodes
from tests.support.hostile import Hostile, bulk, dribble, handshake
from tests.support.scripted import ask

ASK = pack("ASK")


@pytest.fixture
def connection_to():
    """Return a function that connects to a server that greets like a node and answers one command in pieces."""
    with contextlib.ExitStack() as stack:

        def connection_to(pieces, timeout=5.0):
            server = stack.enter_context(Hostile(lambda words: pieces if words == [b"ASK"] else [handshake(words)]))
            return stack.enter_context(contextlib.closing(make_nodes([server.url], redis.Redis)[0].open(timeout)))

        yield connection_to


@pytest.fixture
def connection(nodes):
    """A connection to a real node."""
    with contextlib.closing(make_nodes(nodes.urls[:1], redis.Redis)[0].open(5.0)) as connection:
        yield connection


def test_slow_credential_provider_takes_no_time_from_the_conversation(nodes, monkeypatch):
    late = []

    class Slow(redis.CredentialProvider):
        def get_credentials(self):
            late.append(60.0)
            return "default", ""

    monkeypatch.setattr(handshake_connections, "clock", lambda: clock() + sum(late))
    (node,) = make_nodes(redis.Redis.from_url(nodes.urls[0], credential_provider=Slow()), redis.Redis)
    with contextlib.closing(node.open(5.0)) as connection:
        assert connection.run(ask(pack("ECHO", "a"))) == [b"a"]
    assert late


def test_replies_come_in_order_and_errors_are_values(connection):
    first, error, last = connection.run(ask(pack("ECHO", "a"), pack("NONSENSE"), pack("ECHO", b"\xff")))
    assert (first, last) == (b"a", b"\xff")
    assert isinstance(error, hiredis.ReplyError)


def test_pushes_do_not_count_as_replies(connection_to):
    assert connection_to([b">2\r\n+invalidate\r\n+x\r\n", b":7\r\n"]).run(ask(ASK)) == [7]


def test_closed_connection_raises(connection_to):
    connection = connection_to([b":7"])
    connection.sock.shutdown(socket.SHUT_RD)
    with pytest.raises(ConnectionError, match="closed the connection during the handshake"):
        connection.run(ask(ASK))


def test_bytes_are_bounded(connection_to):
    push = b">1\r\n" + bulk(bytes(65_000))
    with pytest.raises(ConnectionError, match=f"sent more than {MOST_BYTES} bytes"):
        connection_to([push] * (MOST_BYTES // 65_000 + 2)).run(ask(ASK))


def test_a_byte_now_and_then_does_not_extend_the_deadline(connection_to):
    with pytest.raises(TimeoutError, match=r"did not finish the handshake in time|timed out"):
        connection_to(islice(dribble(b"$1000000\r\n"), 100), timeout=0.3).run(ask(ASK))


def test_reply_that_came_in_time_is_read_after_the_deadline(connection_to):
    """A process may get no processor for longer than a timeout."""
    connection = connection_to([b":7\r\n"])
    connection.sock.sendall(ASK)
    connection.sock.setblocking(True)
    assert connection.sock.recv(1, socket.MSG_PEEK)
    connection.until = 0.0
    assert connection.run(ask(ASK)) == [7]
