"""Bytes written to a discarded connection are dead: at this end, and where possible at the other end."""

import itertools
import math
import os
import socket
import struct
import sys
import time
from contextlib import closing
from types import SimpleNamespace

import pytest
import redis

from redsync import Client
from redsync._drivers.channels import Channel
from redsync._drivers.given_nodes import make_nodes
from redsync._drivers.greetings import end_former, greet
from redsync._drivers.links import GIVE_UP, make_link
from tests.aio_support import both_loops, run, until
from tests.support.hostile import Hostile, bulk, greeting
from tests.support.trouble import busy, version_of

WORDS = b"bytes that the node has not read"


@pytest.fixture
def ends():
    """Both ends of a TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        near = socket.create_connection(listening.getsockname())
        far, _ = listening.accept()
    far.settimeout(30)
    with near, far:
        yield near, far


def link_over(sock):
    (node,) = make_nodes(["redis://127.0.0.1:1"], redis.Redis)
    return make_link(node, Channel(SimpleNamespace(_sock=sock), 5.0, math.inf))


def read_to_the_end(sock):
    parts = []
    while part := sock.recv(1000):
        parts.append(part)
    return b"".join(parts)


def test_discarded_connection_is_reset(ends):
    near, far = ends
    link = link_over(near)
    link.write(WORDS)
    link.reset()
    read_to_the_end(far)
    with pytest.raises(OSError, match=r"reset|Broken pipe"):
        far.send(b"a reply")


def test_descriptor_of_a_reset_connection_is_not_reused(ends):
    """Another thread may be about to read or write."""
    link = link_over(ends[0])
    link.reset()
    os.fstat(link.fileno)
    with pytest.raises(OSError, match="not connected"):
        link.read()
    with pytest.raises(OSError, match=r"not connected|Broken pipe"):
        link.send(b"more")
    link.reset()  # several threads may reset it


def test_reset_interrupted_at_any_point_leaves_no_open_socket(inject):
    """pytest reports a socket that only the garbage collector closes."""
    for point in itertools.count(1):
        near, far = socket.socketpair()
        link = link_over(near)
        where = inject(point, link.reset)
        link.reset()
        assert far.recv(1) == b""
        far.close()
        if where is None:
            break
    assert point > 3


def test_connection_of_a_closed_client_ends_cleanly(ends):
    near, far = ends
    link = link_over(near)
    link.write(WORDS)
    link.shut()
    assert read_to_the_end(far) == WORDS
    far.send(b"a reply")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such option")
def test_kernel_drops_a_connection_with_unacknowledged_data(ends):
    near, _ = ends
    link = link_over(near)
    assert near.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == GIVE_UP * 1000
    link.shut()


def test_discarded_link_is_reset_and_a_closed_transports_is_not(rig):
    table, (first, second, _) = rig.transport._table, rig.transport.links
    peers = {link: link._sock.getpeername() for link in (first, second)}
    assert all(peers.values())
    table.discard(first, "a test")
    with pytest.raises(OSError, match="not connected"):
        first._sock.getpeername()
    rig.transport._table.end()
    linger = second._sock.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8)
    assert struct.unpack("ii", linger) == (0, 0)


def test_new_connection_ends_former_ones(nodes):
    """Before any owed command is sent, so the node executes nothing that former connections still carry."""
    url = nodes.urls[0]
    with redis.Redis.from_url(url).client() as former, redis.Redis.from_url(url).client() as other:
        (node,) = make_nodes(nodes.urls[:1], redis.Redis)
        channel = node.open(5.0)
        node.meet(channel.talk(greet(node, 1.0, raw=True)), 0.0)
        process = node.info.run_id
        node.former = (process, former.client_id()), ("another process", other.client_id())
        tag = channel.talk(end_former(node))
        assert tag == (process, channel.ask(b"CLIENT ID\r\n")[0])
        assert node.former == ()
        with pytest.raises(redis.ConnectionError, match="closed by server"):
            former.connection.can_read(60)
        assert other.ping()
        channel.close()


def test_connection_is_not_used_if_a_busy_node_does_not_tell_its_number():
    """It could not be ended later. Not all servers answer CLIENT ID with BUSY."""

    def answer(words):
        if words[0].upper() == b"EVALSHA":
            return [b"*3\r\n" + bulk(b"original 1 -") + b":1000\r\n" + bulk(b"-")]
        return [b"-BUSY a script runs\r\n" if words[:2] == [b"CLIENT", b"ID"] else greeting(words)]

    with Hostile(answer) as server:
        (node,) = make_nodes([server.url], redis.Redis)
        with closing(node.open(5.0)) as channel:
            node.meet(channel.talk(greet(node, 1.0, raw=True)), 0.0)
            with pytest.raises(ConnectionError, match="BUSY"):
                channel.talk(end_former(node))


def test_former_connections_are_remembered_while_the_node_is_busy(nodes, raw):
    """Nothing else is sent over the new connection; the next one asks again."""
    (node,) = make_nodes(nodes.urls[:1], redis.Redis)
    with closing(node.open(5.0)) as channel:
        node.meet(channel.talk(greet(node, 1.0, raw=True)), 0.0)
        node.former = former = ((node.info.run_id, raw[0].client_id()),)
        with busy(raw[:1]), pytest.raises(ConnectionError, match="BUSY"):
            channel.talk(end_former(node))
        assert node.former == former
        channel.talk(end_former(node))
        assert node.former == ()


def test_node_that_refuses_to_number_or_end_connections_is_still_used(nodes, raw):
    channels = ["&*"] if version_of(raw[0]) >= (6, 2) else []
    raw[0].execute_command("ACL", "SETUSER", "app", "reset", "on", ">secret", "~*", *channels, "+@all", "-client")
    try:
        (node,) = make_nodes([nodes.urls[0].replace("//", "//app:secret@")], redis.Redis)
        channel = node.open(5.0)
        node.meet(channel.talk(greet(node, 1.0, raw=True)), 0.0)
        node.former = ((node.info.run_id, 1),)
        assert channel.talk(end_former(node)) is None
        assert node.former == ()
        assert channel.ask(b"PING\r\n") == [b"PONG"]
        channel.close()
    finally:
        raw[0].execute_command("ACL", "DELUSER", "app")


def ids(admin):
    return {int(client["id"]) for client in admin.client_list()}


def wait_until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def kills(admin):
    """Return how often connections were ended; before Redis 7, count all uses of CLIENT together."""
    stats = admin.info("commandstats")
    name = "cmdstat_client|kill" if version_of(admin) >= (7, 0) else "cmdstat_client"
    return stats.get(name, {"calls": 0})["calls"]


def test_client_remembers_the_number_of_each_connection_and_ends_it(nodes, raw):
    with Client(nodes.urls, restart_guard=0) as client:
        wait_until(lambda: all(status.state == "up" for status in client.nodes()))
        transport = client._runner._maintenance.transport
        process, number = transport.links[0].tag
        assert process == raw[0].info("server")["run_id"]
        assert number in ids(raw[0])
        transport._table.discard(transport.links[0], "a test")
        wait_until(lambda: transport.links[0] is not None)
        assert number not in ids(raw[0])
        assert kills(raw[0]) >= 1
        assert transport.links[0].node.former == ()


@both_loops
def test_async_client_resets_and_ends_discarded_connections(nodes, raw, loop):
    from redsync import AsyncClient

    async def main():
        async with AsyncClient(nodes.urls, restart_guard=0) as client:
            async with client.get_lock("x"):
                pass
            transport = client._runner._maintenance.transport
            await until(lambda: all(transport.links))
            link = transport.links[0]
            process, number = link.tag
            assert process == raw[0].info("server")["run_id"]
            sock = socket.socket(fileno=os.dup(link.fileno))  # the reset replaces the link's own
            before = kills(raw[0])
            transport._table.discard(link, "a test")
            assert struct.unpack("ii", sock.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8)) == (1, 0)
            sock.close()
            await until(lambda: transport.links[0] is not None)
            assert number not in ids(raw[0])
            assert kills(raw[0]) == before + 1 or version_of(raw[0]) < (7, 0)

    run(main, loop)
