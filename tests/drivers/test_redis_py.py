"""The parts of redis-py that the drivers use: options, and the addresses of a server's name."""

import asyncio
import gc
import socket
import ssl
from contextlib import ExitStack, suppress

import pytest
import redis.asyncio
from redis._parsers import _RESP2Parser
from redis.exceptions import AuthenticationError, RedisError

from redsync._drivers.handshake_connections import open_connection
from redsync._drivers.redis_py import connect, new_connection, take_streams
from redsync.testing import LocalNodes
from tests.aio_support import in_loop
from tests.support.locks import PATIENCE

NAME = "node.invalid"
SILENT, REFUSING, WORKING = "127.0.0.2", "127.0.0.3", "127.0.0.1"


@pytest.fixture
def resolve(monkeypatch):
    """Let `NAME` have the given addresses."""
    ask = socket.getaddrinfo

    def resolve(*addresses):
        def getaddrinfo(host, port, *args, **options):
            names = addresses if host == NAME else (host,)
            return [place for name in names for place in ask(name, port, *args, **options)]

        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)

    return resolve


@pytest.fixture
def silence():
    """Make a port of `SILENT` swallow all packets: its queue of new connections is full."""
    with ExitStack() as opened:

        def silence(port):
            listener = opened.enter_context(socket.create_server((SILENT, port), backlog=0))
            while True:
                caller = opened.enter_context(socket.socket())
                caller.settimeout(0.05)
                try:
                    caller.connect(listener.getsockname())
                except TimeoutError:
                    return

        yield silence


def connection_to(host, port, timeout=0.3, **options):
    pool = redis.asyncio.ConnectionPool(host=host, port=port, **options)
    return new_connection(pool, timeout)


async def is_connected(connection):
    try:
        await connect(connection)
    except (OSError, RedisError):
        return False
    _, writer = take_streams(connection)
    assert writer.get_extra_info("peername")[0] == WORKING
    writer.transport.abort()
    return True


@in_loop
async def test_connect_with_a_silent_address_uses_the_next_one(nodes, resolve, silence):
    resolve(SILENT, WORKING)
    silence(nodes.ports[0])
    assert await is_connected(connection_to(NAME, nodes.ports[0], timeout=PATIENCE))


@in_loop
async def test_refused_password_is_not_tried_at_another_address(server_path, resolve):
    with LocalNodes(1, server=server_path, config={"requirepass": "secret"}) as nodes:
        resolve(WORKING, REFUSING)
        with pytest.raises(AuthenticationError):
            await connect(connection_to(NAME, nodes.ports[0], timeout=5.0, password="wrong"))


@in_loop
async def test_tls_checks_the_name_and_not_the_address(nodes, resolve, certificate):
    """The certificate is for another name, and only its address could be right."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*map(str, certificate))
    server = await asyncio.start_server(lambda reader, writer: writer.close(), WORKING, 0, ssl=context)
    pool = redis.asyncio.ConnectionPool(
        connection_class=redis.asyncio.SSLConnection,
        host=NAME,
        port=server.sockets[0].getsockname()[1],
        ssl_ca_certs=str(certificate[0]),
        ssl_check_hostname=True,
    )
    resolve(REFUSING, WORKING)
    with pytest.raises(RedisError, match=f"(?i)hostname mismatch.*{NAME}|{NAME}"):
        await connect(new_connection(pool, 5.0))
    server.close()


@in_loop
async def test_cancelled_connect_ends_even_if_redis_py_swallows_the_cancellation(nodes):
    class Swallowing:
        host = WORKING

        async def connect(self):
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(60)

    task = asyncio.create_task(connect(Swallowing()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@in_loop
async def test_cancelled_credential_provider_does_not_end_the_task_that_connects(nodes):
    class Cancelled(redis.CredentialProvider):
        async def get_credentials_async(self):
            raise asyncio.CancelledError

    with pytest.raises(ConnectionError, match="credential provider"):
        await open_connection(connection_to(WORKING, nodes.ports[0], credential_provider=Cancelled()))


def test_callers_options_are_kept_except_what_hurts_a_quorum_client():
    pool = redis.ConnectionPool.from_url(
        "redis://:pw@localhost:7000/3?health_check_interval=30&socket_timeout=60&client_name=mine&decode_responses=True"
    )
    connection = new_connection(pool, 0.5)
    assert (connection.host, connection.port, connection.db, connection.password) == ("localhost", 7000, 3, "pw")
    assert connection.client_name == "mine"
    assert (connection.socket_timeout, connection.socket_connect_timeout) == (0.5, 0.5)
    assert connection.health_check_interval == 0
    assert (connection.lib_name, connection.lib_version) == (None, None)


def test_connection_of_the_callers_class_may_have_a_parser_in_python():
    class Plain(redis.Connection):
        def __init__(self, **options):
            super().__init__(parser_class=_RESP2Parser, **options)

    assert isinstance(new_connection(redis.ConnectionPool(Plain), 0.5)._parser, _RESP2Parser)


def test_connections_leave_no_parser_to_the_garbage_collector(nodes, eventually):
    # Python drops what a signal's handler raises in `__del__`.
    def parsers():
        return [each for each in gc.get_objects() if type(each) is parser]

    parser = type(redis.Connection()._parser)
    gc.collect()
    before = len(parsers())
    gc.disable()
    try:
        with nodes.client() as client, client.get_lock("x"):
            pass
        eventually(lambda: len(parsers()) <= before)
    finally:
        gc.enable()
