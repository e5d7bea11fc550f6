"""Handshake connections: the handshake with a node over a new connection, before a link takes over its socket.

Bytes and seconds are bounded, no matter which server answers. For asyncio an asyncio stream carries the bytes. Before
that redis-py connects and, if there are any, sends a password and a database's number, within its own timeouts. With
threads nothing bounds the replies to these, as redis-py begins its timeout again with each part of a reply.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import hiredis

from redsync._core.interruptions import expected
from redsync._core.replies import MOST_BYTES, NOTHING, new_reader, next_reply
from redsync._core.text import one_line
from redsync._drivers.environment import clock
from redsync._drivers.redis_py import connect, take_socket, take_streams

if TYPE_CHECKING:
    from redsync._drivers.nodes import Node

__all__ = [
    "TIMEOUTS",
    "AioHandshakeConnection",
    "HandshakeConnection",
    "HandshakeSteps",
    "describe_error",
    "open_blocking",
    "open_connection",
    "open_fake_connection",
    "pack",
]

T = TypeVar("T")

TIMEOUTS: Final = 2
"""The most timeouts that a handshake may take."""

_LAST_LOOK: Final = 0.001
"""Seconds of a read after the deadline: a reply may have come while this process got no processor."""

_ALL: Final = 1 << 20
"""More bytes than a stream keeps unread."""

HandshakeSteps: TypeAlias = Generator[list[bytes], list[Any], T]
"""A conversation with a node over any connection: yields commands, gets replies (errors as values), returns T."""


def pack(*parts: bytes | str) -> bytes:
    """Return a command in RESP.

    Never pass numbers to hiredis: it calls back into Python for them. If a signal handler raises there, hiredis 3.5.0
    crashes the process.
    """
    packed: bytes = hiredis.pack_command(parts)  # type: ignore[arg-type]  # the stub says a tuple of one
    return packed


def describe_error(error: BaseException) -> str:
    """Return an error as one short line."""
    return one_line(str(error)) or type(error).__name__


def _converse(reader: hiredis.Reader, steps: HandshakeSteps[T]) -> Generator[bytes, bytes, T]:
    """Hold a conversation: yields what to send before more is read, gets what was read; returns or raises its outcome.

    All commands of a step go out in one write. Pushes are no replies.
    """
    replies: list[Any] = []
    while True:
        try:
            commands = steps.send(replies) if replies else next(steps)
        except StopIteration as stop:
            result: T = stop.value
            return result
        replies, size, data = [], 0, b"".join(commands)
        while len(replies) < len(commands):
            reply = NOTHING if data else next_reply(reader.gets)
            if reply is NOTHING:
                read = yield data
                data = b""
                if not read:
                    raise ConnectionError("closed the connection during the handshake")
                size += len(read)
                if size > MOST_BYTES:
                    raise ConnectionError(f"sent more than {MOST_BYTES} bytes during the handshake")
                reader.feed(read)
            elif not isinstance(reply, hiredis.PushNotification):
                replies.append(reply)


class HandshakeConnection:
    """A new connection to a node, still blocking: for the handshake, before a link takes its socket.

    Attributes:
        sock: The socket; None once it was taken.
        reader: Reads replies.
        until: The instant at which its conversation must be over.
    """

    def __init__(self, sock: socket.socket, timeout: float) -> None:
        """Make it; `timeout` is the most seconds of silence."""
        self.sock: socket.socket | None = sock
        self.reader: Final = new_reader()
        self._timeout: Final = timeout
        self.until = clock() + TIMEOUTS * timeout

    def run(self, steps: HandshakeSteps[T]) -> T:
        """Hold a conversation; return its result or raise its error."""
        assert self.sock is not None, "no link has taken it"
        conversation = _converse(self.reader, steps)
        overdue = False
        try:
            data = next(conversation)
            while True:
                self.sock.sendall(data)
                if overdue:
                    raise TimeoutError("did not finish the handshake in time")
                left = self.until - clock()
                overdue = left <= 0
                self.sock.settimeout(min(max(left, _LAST_LOOK), self._timeout))
                data = conversation.send(self.sock.recv(65536))
        except StopIteration as stop:
            result: T = stop.value
            return result

    def take(self) -> socket.socket:
        """Return the socket; this object no longer closes it."""
        assert self.sock is not None, "it is taken once"
        sock, self.sock = self.sock, None
        return sock

    def close(self) -> None:
        """Close the connection without telling the node."""
        if self.sock is not None:
            # It ends the copy that a forked child may have, too.
            with expected(OSError):  # ENOTCONN
                self.sock.shutdown(socket.SHUT_RDWR)
            self.sock.close()


class AioHandshakeConnection:
    """A new connection to a node: for the handshake, before a link takes it over.

    Attributes:
        reader: Reads replies; has all bytes that have come.
    """

    def __init__(self, stream: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take over a stream."""
        self.reader: Final = new_reader()
        self._stream: Final = stream
        self._writer: Final = writer

    async def run(self, steps: HandshakeSteps[T]) -> T:
        """Hold a conversation; return its result or raise its error."""
        conversation = _converse(self.reader, steps)
        try:
            data = next(conversation)
            while True:
                self._writer.write(data)
                data = conversation.send(await self._stream.read(_ALL))
        except StopIteration as stop:
            result: T = stop.value
            return result

    # The end. From the last reply on to here the loop must not run: the stream would keep what comes.

    @property
    def lost(self) -> bool:
        """True if the node has closed the connection."""
        return self._stream.at_eof() or self._writer.is_closing()

    def is_plain(self) -> bool:
        """Return True if `take` may be called: there is a socket of the system, without TLS."""
        sock = self._writer.get_extra_info("socket")
        return self._writer.get_extra_info("ssl_object") is None and hasattr(sock, "fileno")

    def take(self) -> socket.socket:
        """Return the socket; the asyncio transport ends."""
        taken = socket.socket(fileno=os.dup(self._writer.get_extra_info("socket").fileno()))
        self._writer.transport.abort()
        return taken

    def take_transport(self, protocol: asyncio.Protocol) -> tuple[asyncio.Transport, object]:
        """Return the asyncio transport, and an object that must live as long."""
        transport: Any = self._writer.transport
        transport.set_protocol(protocol)
        return transport, self._writer

    def close(self) -> None:
        """Close the connection without telling the node."""
        self._writer.transport.abort()


def open_blocking(connection: Any, timeout: float) -> HandshakeConnection:
    """Connect and authenticate a redis-py connection for threads, and take it over; see `HandshakeConnection`.

    Raises:
        OSError, RedisError: The server was unreachable or refused the client.
    """
    try:
        connection.connect()
    except BaseException:
        connection.disconnect()
        raise
    return HandshakeConnection(take_socket(connection), timeout)


async def open_connection(connection: Any) -> AioHandshakeConnection:
    """Connect and authenticate a redis-py connection, and take it over.

    Raises:
        OSError, RedisError: The server was unreachable or refused the client.
    """
    try:
        await connect(connection)
    except BaseException:
        await connection.disconnect(nowait=True)
        raise
    return AioHandshakeConnection(*take_streams(connection))


async def open_fake_connection(node: Node) -> AioHandshakeConnection | None:
    """Connect a fakeredis instance; return None for all other nodes."""
    sock = node.fake_socket()
    return None if sock is None else AioHandshakeConnection(*await asyncio.open_connection(sock=sock))
