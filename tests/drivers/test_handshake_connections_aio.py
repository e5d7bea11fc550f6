"""Connections of the asyncio driver: TLS, unix sockets, redis-py clients, fakeredis; and the handshake."""

import asyncio
import ssl
from contextlib import asynccontextmanager
from unittest.mock import ANY

import fakeredis
import pytest
import redis.asyncio

from redsync import AsyncClient, QuorumError
from redsync._drivers.handshake_connections import open_connection, pack
from redsync._drivers.nodes import make_nodes
from redsync.testing import LocalNodes
from tests.aio_support import both_loops, claims, client_of, in_loop, structures, take, turns, until, uvloop_in_sweeps
from tests.support.locks import states
from tests.support.scripted import ask


async def use_alone(client):
    """Do a bit of everything that does not wait."""
    lock = client.get_lock("x")
    async with lock as hold, client.get_mutex("y"), lock:
        assert lock.hold_count() == 2
        await hold.extend()
        assert await lock.locked()
        assert not await asyncio.create_task(client.get_lock("x").acquire(False))


async def use(client, raw=None):
    """Do a bit of everything."""
    lock = client.get_lock("x")
    await use_alone(client)
    waiter = asyncio.create_task(take(lock))
    async with lock:
        await asyncio.sleep(0.005)
    await waiter
    await asyncio.gather(*(take(client.get_lock(f"z {i % 4}")) for i in range(20)))
    if raw is not None:
        await until(lambda: claims(raw) == [])


# TLS.


@asynccontextmanager
async def tls_before(ports, certificate):
    """Yield the ports of servers that speak TLS and forward to these ports."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*map(str, certificate))
    tasks = set()

    async def pipe(reader, writer):
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    def passing_on_to(port):
        async def serve(reader, writer):
            task = asyncio.current_task()
            tasks.add(task)
            try:
                inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
                await asyncio.gather(pipe(reader, inner_writer), pipe(inner_reader, writer))
                for each in (writer, inner_writer):
                    await asyncio.wait_for(asyncio.gather(each.wait_closed(), return_exceptions=True), 5)
            finally:
                tasks.discard(task)

        return serve

    servers = [await asyncio.start_server(passing_on_to(port), "127.0.0.1", 0, ssl=context) for port in ports]
    try:
        yield [server.sockets[0].getsockname()[1] for server in servers]
    finally:
        for server in servers:
            server.close()
        await until(lambda: not tasks)


@both_loops
@in_loop
async def test_nodes_may_speak_tls(nodes, raw, certificate, loop):
    async with tls_before(nodes.ports, certificate) as ports:
        urls = [f"rediss://127.0.0.1:{port}?ssl_ca_certs={certificate[0]}" for port in ports]
        async with client_of(urls) as client:
            await use(client, raw)
            await until(lambda: states(client) == ["up"] * 3)
            assert structures(client) == {}


# Unix sockets, passwords, redis-py clients.


@both_loops
@in_loop
async def test_node_may_be_a_unix_socket_and_require_a_password(server_path, tmp_path, loop):
    path = tmp_path / "node.sock"
    with LocalNodes(1, server=server_path, config={"unixsocket": str(path), "requirepass": "s3cr:t/"}) as nodes:
        async with client_of([f"unix://:s3cr%3At%2F@{path}"]) as client:
            await use(client)
            assert client.nodes()[0].address == str(path)
            assert states(client) == ["up"]
        async with client_of(nodes) as client:
            with pytest.raises(QuorumError, match=r"(?i)auth"):
                await client.get_lock("x").acquire(False)


@uvloop_in_sweeps
@in_loop
async def test_nodes_may_be_redis_py_clients(nodes, raw, loop):
    """The client uses their settings, not their connections, and not their decoding of replies to text."""
    theirs = [redis.asyncio.Redis(port=port, decode_responses=True, client_name="theirs") for port in nodes.ports]
    assert await theirs[0].ping()
    async with client_of(theirs) as client:
        await use(client, raw)
        names = [each.get("name") for each in raw[0].client_list()]
        assert names.count("theirs") == 2
    assert await theirs[0].ping()
    for each in theirs:
        await each.aclose()


# fakeredis.


@pytest.fixture
def servers():
    return [fakeredis.FakeServer() for _ in range(3)]


def fakes(servers):
    return [fakeredis.FakeAsyncRedis(server=server) for server in servers]


@in_loop
async def test_nodes_may_be_fakeredis(servers):
    async with AsyncClient(fakes(servers)) as client:
        await use(client)
        assert states(client) == ["up"] * 3
        assert {status.version for status in client.nodes()} == {f"fakeredis {fakeredis.__version__}"}
        assert (await client.inspect("x")).holders == ()
        await until(lambda: structures(client) == {})
    looks = fakes(servers)
    for look in looks:
        keys = await look.keys("*")
        assert not [key for key in keys if not key.startswith((b"redsync:client:", b"redsync_birth"))]
        await look.aclose()


@in_loop
async def test_fakeredis_takes_part_again_after_a_disconnect(servers):
    async with AsyncClient(fakes(servers)) as client:
        await use_alone(client)
        servers[1].connected = False
        await take(client.get_lock("x"))
        await until(lambda: states(client)[1] == "down")
        await take(client.get_lock("x"))
        servers[1].connected = True
        await until(lambda: states(client)[1] == "up")
        await use_alone(client)


# The handshake.


@pytest.fixture
def node(nodes):
    return make_nodes(nodes.urls[:1], redis.asyncio.Redis)[0]


@both_loops
@in_loop
async def test_channel_asks_and_is_taken_over_with_all_that_has_come(nodes, node, loop):
    connection = await open_connection(node.make_connection(1.0))
    assert await connection.run(ask(pack("PING"), pack("NONSENSE"), pack("ECHO", "x"))) == [b"PONG", ANY, b"x"]
    assert connection.is_plain()
    connection.reader.feed(b"+early\r\n")
    with connection.take() as sock:
        assert connection.reader.gets() == b"early"
        sock.setblocking(True)
        await turns(3)
        sock.sendall(pack("PING"))
        assert sock.recv(100) == b"+PONG\r\n", "the end of the asyncio transport is not that of the connection"
