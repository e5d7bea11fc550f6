"""Channels of the driver for asyncio: `channels` has the rules; here an asyncio transport carries the bytes."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Any, Final, TypeVar

import hiredis

from redsync._core.replies import MOST_BYTES, NOTHING, new_reader, next_reply
from redsync._drivers.channels import Talk
from redsync._drivers.nodes import Node, describe_error
from redsync._drivers.redis_py import Addresses, take_writer

__all__ = ["AioChannel", "open_channel", "open_fake_channel"]

T = TypeVar("T")


class AioChannel(asyncio.Protocol):
    """A new connection to a node: for the handshake, before a link takes it over.

    Attributes:
        reader: Reads replies; has all bytes that have come.
        raw: False for a fakeredis instance, which does not describe itself.
        lost: Why no more will come; None if more may come.
    """

    def __init__(self, *, raw: bool = True) -> None:
        self.reader: Final = new_reader()
        self.raw: Final = raw
        self.lost: str | None = None
        self._transport: asyncio.Transport
        self._writer: asyncio.StreamWriter | None = None
        self._news: asyncio.Future[None] | None = None
        self._size = 0

    @classmethod
    def over(cls, writer: asyncio.StreamWriter) -> AioChannel:
        """Return a channel over a stream, which it takes over."""
        channel = cls()
        channel._writer = writer
        channel._transport = writer.transport  # type: ignore[assignment]  # a stream has such a transport
        channel._transport.set_protocol(channel)
        return channel

    async def ask(self, *commands: bytes) -> list[Any]:
        """Send commands in one write; return their replies, errors as values, without pushes."""
        self._transport.write(b"".join(commands))
        replies: list[Any] = []
        self._size = 0
        while len(replies) < len(commands):
            reply = next_reply(self.reader.gets)
            if reply is NOTHING:
                await self._receive()
            elif not isinstance(reply, hiredis.PushNotification):
                replies.append(reply)
        return replies

    async def _receive(self) -> None:
        if self._size > MOST_BYTES:
            raise ConnectionError(f"sent more than {MOST_BYTES} bytes during the handshake")
        if self.lost is not None:
            raise ConnectionError(f"{self.lost} during the handshake")
        self._news = asyncio.get_running_loop().create_future()
        await self._news

    async def talk(self, talk: Talk[T]) -> T:
        """Hold a conversation; return its result or raise its error."""
        replies: list[Any] = []
        while True:
            try:
                commands = talk.send(replies) if replies else next(talk)
            except StopIteration as stop:
                result: T = stop.value
                return result
            replies = await self.ask(*commands)

    # The loop calls these.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # for an `asyncio.Protocol` it is such a transport

    def data_received(self, data: bytes) -> None:
        self._size += len(data)
        self.reader.feed(data)
        self._tell()

    def eof_received(self) -> None:
        self._end("closed the connection")

    def connection_lost(self, error: Exception | None) -> None:
        self._end("closed the connection" if error is None else describe_error(error))

    def _end(self, reason: str) -> None:
        self.lost = self.lost or reason
        self._tell()

    def _tell(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    # The end.

    def is_plain(self) -> bool:
        """Return True if `take` may be called: there is a socket of the system, without TLS."""
        sock = self._transport.get_extra_info("socket")
        return self._transport.get_extra_info("ssl_object") is None and hasattr(sock, "fileno")

    def take(self) -> socket.socket:
        """Return the socket; the asyncio transport ends."""
        self._transport.pause_reading()
        taken = socket.socket(fileno=os.dup(self._transport.get_extra_info("socket").fileno()))
        self._transport.abort()
        return taken

    def take_transport(self, protocol: asyncio.Protocol) -> tuple[asyncio.Transport, object]:
        """Return the asyncio transport, and an object that must live as long."""
        self._transport.set_protocol(protocol)
        return self._transport, self._writer

    def close(self) -> None:
        """Close the connection without a farewell to the node."""
        self._transport.abort()


async def open_channel(connection: Any, addresses: Addresses) -> AioChannel:
    """Connect and authenticate a redis-py connection, and take it over.

    Raises:
        OSError, RedisError: The server was unreachable or refused the client.
    """
    try:
        await addresses.connect(connection)
    except BaseException:
        await connection.disconnect(nowait=True)
        raise
    return AioChannel.over(take_writer(connection))


async def open_fake_channel(node: Node) -> AioChannel | None:
    """Connect a fakeredis instance; return None for all other nodes."""
    sock = node.fake_socket()
    if sock is None:
        return None
    loop = asyncio.get_running_loop()
    sock.setblocking(False)
    by_path = sock.family == getattr(socket, "AF_UNIX", None)
    connect = loop.create_unix_connection if by_path else loop.create_connection
    _, channel = await connect(lambda: AioChannel(raw=False), sock=sock)
    return channel
