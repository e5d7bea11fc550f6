"""Channels: the handshake with a node over a new connection, before a link takes over its socket.

Bytes and seconds are bounded, no matter which server answers.
"""

from __future__ import annotations

import socket
from collections.abc import Generator
from typing import Any, Final, TypeAlias, TypeVar

import hiredis

from redsync._core.replies import MOST_BYTES, NOTHING, new_reader, next_reply
from redsync._drivers.process import clock

__all__ = ["Channel", "Talk", "pack"]

T = TypeVar("T")

_LAST_LOOK: Final = 0.001
"""Seconds of a read after the deadline: a reply may have come while this process got no processor."""

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
    """A new connection to a node, still blocking: for the handshake, before a link takes its socket.

    Attributes:
        sock: The socket; None once it was taken.
        reader: Reads replies.
        raw: False for a fakeredis instance, which does not describe itself.
    """

    def __init__(self, sock: socket.socket, timeout: float, until: float, *, raw: bool = True) -> None:
        """Make a channel; `timeout` is the most seconds of silence, `until` the instant of its end."""
        self.sock: socket.socket | None = sock
        self.reader: Final = new_reader()
        self.raw: Final = raw
        self._timeout: Final = timeout
        self._until: Final = until

    def ask(self, *commands: bytes) -> list[Any]:
        """Send commands in one write; return their replies, errors as values, without pushes."""
        assert self.sock is not None, "no link has taken it"
        self.sock.sendall(b"".join(commands))
        replies: list[Any] = []
        size, overdue = 0, False
        while len(replies) < len(commands):
            reply = next_reply(self.reader.gets)
            if reply is NOTHING:
                if overdue:
                    raise TimeoutError("did not finish the handshake in time")
                left = self._until - clock()
                overdue = left <= 0
                self.sock.settimeout(min(max(left, _LAST_LOOK), self._timeout))
                data = self.sock.recv(65536)
                if not data:
                    raise ConnectionError("closed the connection during the handshake")
                size += len(data)
                if size > MOST_BYTES:
                    raise ConnectionError(f"sent more than {MOST_BYTES} bytes during the handshake")
                self.reader.feed(data)
            elif not isinstance(reply, hiredis.PushNotification):
                replies.append(reply)
        return replies

    def take(self) -> socket.socket:
        """Return the socket; this channel no longer closes it."""
        assert self.sock is not None, "it is taken once"
        sock, self.sock = self.sock, None
        return sock

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
        if self.sock is not None:
            self.sock.close()
