"""Channels: the handshake with a node over a new redis-py connection, before a link takes over its socket.

Bytes and seconds are bounded, no matter which server answers.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Generator
from typing import Any, Final, TypeAlias, TypeVar

import hiredis
from redis.exceptions import ResponseError

from redsync._core.replies import MOST_BYTES, NOTHING, ReplyReader, next_reply

__all__ = ["Channel", "Talk", "pack", "reply_error"]

T = TypeVar("T")

Talk: TypeAlias = Generator[list[bytes], list[Any], T]
"""A conversation with a node over any connection: yields commands, gets replies (errors as values), returns T."""


def pack(*parts: bytes | str) -> bytes:
    """Return a command in RESP.

    Never pass numbers to hiredis: it calls back into Python for them. If a signal handler raises there, hiredis 3.5.0
    crashes the process.
    """
    packed: bytes = hiredis.pack_command(parts)  # type: ignore[arg-type]  # the stub says a tuple of one
    return packed


class Channel:
    """A new connection to a node, still blocking: for the handshake, before a link takes its socket."""

    def __init__(self, connection: Any, timeout: float, until: float) -> None:
        """Make a channel; `timeout` is the most seconds of silence, `until` the monotonic instant of its end."""
        self.connection: Final = connection
        self._timeout: Final = timeout
        self._until: Final = until
        sock = connection._sock
        self.sock: Final[socket.SocketType | None] = sock if isinstance(sock, socket.SocketType) else None
        self.reader: Final = ReplyReader()

    @property
    def raw(self) -> bool:
        """True if there is a real socket; fakeredis has none, so it is called instead."""
        return self.sock is not None

    def ask(self, *commands: bytes) -> list[Any]:
        """Send commands in one write; return their replies, errors as values, without pushes."""
        if self.sock is None:
            return [self.call(command) for command in commands]
        self.sock.sendall(b"".join(commands))
        replies: list[Any] = []
        size = 0
        while len(replies) < len(commands):
            reply = next_reply(self.reader.gets)
            if reply is NOTHING:
                data = self._receive(self.sock)
                size += len(data)
                if size > MOST_BYTES:
                    raise ConnectionError(f"sent more than {MOST_BYTES} bytes during the handshake")
                self.reader.feed(data)
            elif not isinstance(reply, hiredis.PushNotification):
                replies.append(reply)
        return replies

    def _receive(self, sock: socket.SocketType) -> bytes:
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError("did not finish the handshake in time")
        sock.settimeout(min(left, self._timeout))
        data = sock.recv(65536)
        if not data:
            raise ConnectionError("closed the connection during the handshake")
        return data

    def call(self, command: bytes) -> Any:
        """Send one command through redis-py and return its reply; an error that the node replied is a value."""
        self.connection.send_packed_command([command], check_health=False)
        try:
            return self.connection.read_response()
        except ResponseError as error:
            return reply_error(error)

    def take(self) -> socket.SocketType:
        """Return the socket; redis-py no longer closes it."""
        assert self.sock is not None, "it has a socket"
        self.connection._sock = None
        return self.sock

    def talk(self, talk: Talk[T]) -> T:
        """Hold a conversation; return its result or raise its error."""
        replies: list[Any] = []
        while True:
            try:
                commands = talk.send(replies) if replies else next(talk)
            except StopIteration as stop:
                result: T = stop.value
                return result
            replies = self.ask(*commands)

    def close(self) -> None:
        """Close the connection without a farewell to the node."""
        self.connection.disconnect()


def reply_error(error: ResponseError) -> hiredis.ReplyError:
    """Return a node's error as a value, with the error code that redis-py cuts off."""
    code = {"NoScriptError": "NOSCRIPT", "ReadOnlyError": "READONLY"}
    name = code.get(type(error).__name__, "")
    text = str(error)
    return hiredis.ReplyError(f"{name} {text}" if name and not text.startswith(name) else text)
