"""Links: connections to one node each, non-blocking and pipelined.

The n-th reply belongs to the n-th command, no matter which messages come in between: `pending` holds the requests that
were sent and are not answered, oldest first. A link knows bytes and their order; `link_sets` knows what they mean.
"""

from __future__ import annotations

import errno
import os
import socket
import ssl
import struct
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

import hiredis

from redsync._core.interruptions import expected
from redsync._drivers.kept_calls import receiver, sender
from redsync._drivers.nodes import ConnectionId, Node
from redsync._drivers.requests import Request

__all__ = ["BACKLOG_LIMIT", "GIVE_UP", "NOT_NOW", "AnyLink", "Link", "LinkFault", "bound_silence", "let_reset"]

GIVE_UP: Final = 10.0
"""The most seconds of silence until a connection is replaced: the node may work behind a dead connection."""

BACKLOG_LIMIT: Final = 4 << 20
"""The most bytes kept for a node that does not read: plenty, because a hung node gets only releases."""

_NO_LINGER: Final = struct.pack("ii", 1, 0)
_USER_TIMEOUT: Final = getattr(socket, "TCP_USER_TIMEOUT", None)
NOT_NOW: Final = BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError
"""The errors of a socket that does not block, and can't send or receive now."""


class LinkFault(Exception):
    """A node broke its link: it closed the connection, does not read, or sends what no node sends."""


class AnyLink(ABC):
    """One connection to one node.

    Attributes:
        node: The node at the other end.
        generation: The node's `generation` for which it was made; with another one it leads to a former server.
        connection_id: The server process at the other end, and its number for this connection; None if it reports none.
        fileno: Its descriptor for polls; -1 if an event loop reads it.
        pending: The requests that were sent and are not answered, oldest first.
        since: The instant at which the node last completed an answer, or was sent something after it owed nothing.
        unfinished: The number of bytes that have come since the last complete reply.
        backlog: Bytes that the node does not accept now.
        suspect: True if the node owed replies for longer than the node timeout when that was last looked at.
        encode: Returns the bytes of requests that are pending and about to be written; None: each as it is.
        feed: Takes received bytes.
        gets: Returns the next complete reply of these; NOTHING if there is none.
        explain: Returns the reason for a missing reply: the given one, or a better one.
    """

    fileno = -1

    def __init__(self, node: Node, reader: hiredis.Reader, connection_id: ConnectionId | None = None) -> None:
        self.node: Final = node
        self.index: Final = node.index
        self.bit: Final = node.bit
        self.generation = node.generation
        self.connection_id = connection_id
        self.pending: deque[Request] = deque()
        self.since = 0.0
        self.backlog = bytearray()
        self.suspect = False
        self.encode: Callable[[Sequence[Request]], bytes] | None = self._encode if node.has_slot else None
        self.feed: Callable[[Any], object] = reader.feed
        self.gets: Callable[[], Any] = reader.gets
        self.explain: Callable[[str], str] = str
        self.unfinished = 0

    def _encode(self, requests: Sequence[Request]) -> bytes:
        codec = self.node.codec
        return b"".join([codec.data(request) for request in requests])

    @abstractmethod
    def write(self, data: bytes) -> None:
        """Send bytes, and keep what the node does not accept now.

        Raises:
            OSError, LinkFault: The link is broken.
        """

    def silence(self, now: float) -> float:
        """Return for how many seconds the node has owed replies."""
        return now - self.since if self.pending else 0.0

    def lateness(self, now: float) -> str:
        """Return what the node owes, for people."""
        return self.explain(f"owes {len(self.pending)} replies for {self.silence(now):.2f} s")

    @abstractmethod
    def shut(self) -> None:
        """End the connection; written bytes still reach the node."""

    @abstractmethod
    def reset(self) -> None:
        """Drop the connection: written bytes that have not left this machine never will."""

    @abstractmethod
    def forget(self) -> None:
        """In the child of a fork: close the copy of the parent's socket without a word to the node."""


class Link(AnyLink):
    """A link over a socket.

    Attributes:
        receive: Returns received bytes, none if the node closed the connection; raises one of NOT_NOW if nothing came.
    """

    def __init__(self, node: Node, connection: Any, connection_id: ConnectionId | None = None) -> None:
        """Take over the socket of a handshake connection of either flavour."""
        super().__init__(node, connection.reader, connection_id)
        self._sock: Final[Any] = connection.take()
        self._sock.setblocking(False)
        bound_silence(self._sock)
        self.fileno = self._sock.fileno()
        self._send: Callable[[bytes], int] = sender(self._sock)
        self.receive: Callable[[], bytes] = receiver(self._sock)

    def write(self, data: bytes) -> None:
        if not self.backlog:
            try:
                sent = self._send(data)
            except NOT_NOW as error:
                if error.errno is None:
                    raise  # a signal handler's
                sent = 0
            if sent == len(data):
                return
            data = data[sent:]
        # A new link begins with the releases that its node must get, no matter how many.
        elif len(self.backlog) + len(data) > BACKLOG_LIMIT:
            raise LinkFault(f"does not read: more than {BACKLOG_LIMIT} bytes wait for it")
        self.backlog += data

    def flush(self) -> None:
        """Send as much of the backlog as the node accepts."""
        kept = bytes(self.backlog)
        self.backlog.clear()
        self.write(kept)

    def shut(self) -> None:
        # The system soon gives the descriptor to another connection.
        self._send = self.receive = _closed
        with expected(OSError):  # ENOTCONN: the node was quicker.
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    def reset(self) -> None:
        # After a plain shutdown the kernel would keep sending unacknowledged bytes for minutes. The shutdown also ends
        # the copy that a forked child may have.
        let_reset(self._sock)
        self.shut()

    def forget(self) -> None:
        descriptor = self._sock.detach()
        if descriptor >= 0:
            socket.close(descriptor)


def _closed(*_: object) -> Any:
    raise OSError(errno.EBADF, os.strerror(errno.EBADF))


def bound_silence(sock: Any) -> None:
    """Make the kernel drop a connection with data unacknowledged for `GIVE_UP`, where it can."""
    if _USER_TIMEOUT is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
        with expected(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, _USER_TIMEOUT, int(GIVE_UP * 1000))


def let_reset(sock: Any) -> None:
    """Make the kernel drop unsent and unacknowledged bytes when the socket is closed."""
    with expected(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
