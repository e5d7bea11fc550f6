"""Handshakes: redis-py's reads while it connects obey the bounds of all replies, and end."""

import asyncio
from itertools import islice

import hiredis
import pytest
import redis
import redis.asyncio

from redsync._drivers.aio_links import open_link
from redsync._drivers.given_nodes import make_nodes
from redsync._drivers.handshakes import AioParser, Parser, parser_for
from tests.support.hostile import Hostile, dribble


def open_blocking(url, timeout):
    make_nodes([url], redis.Redis)[0].open(timeout)


def open_async(url, timeout):
    asyncio.run(open_link(make_nodes([url], redis.asyncio.Redis)[0], timeout))


@pytest.mark.parametrize(
    ("connection_class", "parser"),
    [
        (redis.Connection, Parser),
        (redis.SSLConnection, Parser),
        (redis.UnixDomainSocketConnection, Parser),
        (redis.asyncio.Connection, AioParser),
        (redis.asyncio.SSLConnection, AioParser),
        (redis.asyncio.UnixDomainSocketConnection, AioParser),
    ],
)
def test_parser_fits_the_connection(connection_class, parser):
    assert parser_for(connection_class) is parser


@pytest.mark.parametrize("connect", [open_blocking, open_async])
def test_handshake_that_announces_too_much_is_ended(connect):
    with (
        Hostile(lambda words: [b"*2147483647\r\n"]) as server,
        pytest.raises(hiredis.ProtocolError, match="announced 2147483647 elements, more than 1000000"),
    ):
        connect(server.url, 20.0)


def test_endless_handshake_is_ended_after_two_timeouts():
    """A byte comes long before each read times out. An event loop bounds the whole connect instead."""
    with (
        Hostile(lambda words: islice(dribble(b"%1\r\n$1000000\r\n"), 100)) as server,
        pytest.raises(redis.TimeoutError) as error,
    ):
        open_blocking(server.url, 0.5)
    assert str(error.value.__context__) == "did not finish the handshake in time"
