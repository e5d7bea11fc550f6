"""Links: a client's connection to one node, non-blocking and pipelined.

A link knows bytes and the order of replies: `pending` holds the requests that were sent and are not answered, oldest
first. The n-th reply belongs to the n-th command, no matter which pushes come in between. That pairing must never
shift, so a thread that is interrupted between recording a command and sending it breaks the link.
"""

from __future__ import annotations

import math
import os
import socket
import ssl
import struct
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from redis.exceptions import RedisError

from redsync._core.interruptions import expected, is_interruption
from redsync._core.replies import NOTHING
from redsync._drivers.channels import Channel
from redsync._drivers.kept_calls import receiver, sender
from redsync._drivers.nodes import Node, describe_error
from redsync._drivers.requests import Request
from redsync._drivers.retries import Retries

__all__ = [
    "BACKLOG_LIMIT",
    "GIVE_UP",
    "CallLink",
    "Link",
    "QuietSocket",
    "SocketLink",
    "bound_silence",
    "in_one",
    "let_reset",
    "make_link",
    "one_by_one",
    "speak",
]

GIVE_UP = 10.0
"""Seconds of silence after which a connection is replaced: the node may work again behind a dead connection."""

_NO_LINGER = struct.pack("ii", 1, 0)
_USER_TIMEOUT = getattr(socket, "TCP_USER_TIMEOUT", None)

_NOT_NOW = BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError

_READ_SIZE = 16384
_RECORDS = 4
"""The number of TLS records read at once."""

BACKLOG_LIMIT = 4 << 20
"""The most bytes kept for a node that does not read: plenty, because a hung node gets only releases."""


class Link(ABC):
    """The base of all links.

    Attributes:
        node: The node at the other end.
        pending: The requests that were sent and are not answered, oldest first. The thread that flushes the outbox
            appends to it, the thread that reads pops from it.
        since: The instant at which the node last completed an answer, or was sent something after it owed nothing, in
            seconds on the client's clock.
        unfinished: Roughly the number of bytes received of an incomplete answer.
        messages: Roughly the number of wake-ups received since `counted_at`, an instant of the client's clock.
        suspect: True if the node owed replies for longer than the node timeout, and has not caught up yet.
        at_rest: True if the parser is known to be between two replies, and the node has caught up with everything: the
            next piece may need no parser.
        broken: Why it can no longer be used; None while it can.
        backlog: True while bytes wait for the node to read.
        healing: Requests that the node answered with NOSCRIPT; they are sent again at once, unless a later one is
            executed first.
        again: Requests that the node must get, but answered with an error; they are sent again later.
        swift: True if the flushing thread may `send` to it without a lock, whole batches at once, while there is no
            backlog.
        instant: True if it answers in the call that writes to it, and is read then; nothing polls it.
        parts: Returns the bytes of a batch of requests, each piece for a separate `write` or `keep`. Called once for a
            batch, when it is pending and about to be written.
        tag: The server process at the other end, and its number for this connection; None if it reports none.
        send: Sends bytes at once; returns how many the system took, None if the link keeps the others itself.
        read: Returns the bytes received, for `feed`, or an empty value if the node closed the connection. If nothing
            has arrived, returns None or raises BlockingIOError. A link that an event loop reads has none.
        glance: The same, but may leave bytes that a poll reports. Python has small pieces at hand, larger ones cost a
            `malloc`.
        feed: Takes what was read.
        gets: Returns the next complete reply of those fed; NOTHING if there is none.
        has_more: Returns False if the link holds nothing behind the reply that `gets` has just returned.
    """

    swift = False
    instant = False
    tag: tuple[str, int] | None = None
    send: Callable[[bytes], int | None]
    read: Callable[[], Any]
    feed: Callable[[Any], object]
    gets: Callable[[], Any]
    has_more: Callable[[], bool]
    parts: Callable[[Sequence[Request]], list[bytes]]

    def __init__(self, node: Node) -> None:
        self.node: Final = node
        self.index: Final = node.index
        self.pending: Final[deque[Request]] = deque()
        self.since = 0.0
        self.unfinished = 0
        self.messages = 0
        self.counted_at = -math.inf
        self.suspect = False
        self.at_rest = False
        self.broken: str | None = None
        self.backlog = False
        self.healing: list[Request] = []
        self.again: Final = Retries()
        self.parts = in_one
        self.has_more = _perhaps

    fileno = -1

    def glance(self) -> Any:
        return self.read()

    @abstractmethod
    def write(self, data: bytes) -> None:
        """Send data; keep what the node does not accept now. Raises OSError when the link is broken."""

    @abstractmethod
    def keep(self, data: bytes) -> None:
        """Keep bytes for the next `flush`."""

    @abstractmethod
    def flush(self) -> None:
        """Send as many of the kept bytes as the node accepts."""

    @abstractmethod
    def shut(self) -> None:
        """End the connection; written bytes still reach the node. The socket closes with its last user."""

    def reset(self) -> None:
        """Drop the connection: written bytes that have not left this machine never will."""
        self.shut()

    @abstractmethod
    def forget(self) -> None:
        """Close a forked child's copy of its parent's socket, and touch nothing else."""


class QuietSocket(socket.SocketType):
    """A socket that closes with its last reference, even if frames of an interruption are the last to have that.

    The collector ends such frames and all that they refer to in any order, and other sockets then warn.
    """

    def __del__(self) -> None:
        self.close()


class SocketLink(Link):
    """A link over a real socket.

    It is never part of a reference cycle, so its descriptor closes as soon as its last user has left, without waiting
    for the garbage collector.

    Attributes:
        send: The socket's own send.
    """

    swift = True

    def __init__(self, node: Node, channel: Channel) -> None:
        super().__init__(node)
        assert channel.sock is not None
        self._connection = channel.connection
        self._sock: Final[Any] = channel.sock
        self.gets = channel.reader.gets
        self.feed = channel.reader.feed
        self.has_more = channel.reader.has_more
        self._kept = bytearray()
        # Guards `_kept`, and the TLS state of a socket that two threads read and write.
        self._lock: Final = threading.Lock()
        self._sock.setblocking(False)
        self.send = sender(self._sock)
        if self.swift:
            self.read = self.glance = receiver(self._sock)  # type: ignore[method-assign]
        bound_silence(self._sock)
        self.fileno = self._sock.fileno()

    def write(self, data: bytes) -> None:
        with self._lock:
            if self._kept:
                self._append(data)
                return
            try:
                sent = self._sock.send(data)
            except _NOT_NOW as error:
                if is_interruption(error):
                    raise
                sent = 0
            if sent < len(data):
                self._append(data[sent:])

    def keep(self, data: bytes) -> None:
        with self._lock:
            self._append(data)

    def _append(self, data: bytes) -> None:
        # A new link begins with the commands that its node is owed, no matter how many.
        if self._kept and len(self._kept) + len(data) > BACKLOG_LIMIT:
            raise ConnectionError(f"does not read: more than {BACKLOG_LIMIT} bytes wait for it")
        self._kept += data
        self.backlog = True

    def flush(self) -> None:
        with self._lock:
            try:
                while self._kept:
                    sent = self._sock.send(self._kept)
                    del self._kept[:sent]
            except _NOT_NOW as error:
                if is_interruption(error):
                    raise
                return
            self.backlog = False

    def shut(self) -> None:
        # close() is unsafe: another thread may be about to read, and the system soon reuses a closed descriptor.
        with expected(OSError):  # ENOTCONN: the node was quicker.
            self._sock.shutdown(2)

    def reset(self) -> None:
        # After a plain shutdown the kernel would keep sending unacknowledged bytes for minutes. The reset also ends the
        # copy that a forked child may have.
        let_reset(self._sock)
        self.shut()
        if os.name != "posix":
            return  # A socket is no descriptor there, and closes with its last user.
        with expected(OSError):
            blank = QuietSocket()
            # This closes the socket at once, but keeps its descriptor, which another thread may be about to use.
            os.dup2(blank.fileno(), self._sock.fileno(), inheritable=False)

    def forget(self) -> None:
        os.close(self._sock.detach())
        self._connection._sock = None

    def __del__(self) -> None:
        # An interruption may have come before `__init__` ended.
        if hasattr(self, "_sock"):
            self._sock.close()
            self._connection._sock = None


class TlsLink(SocketLink):
    """A link over TLS."""

    swift = False

    def read(self) -> bytes | None:  # A method, because an attribute would be a cycle.
        # TLS delivers data record by record, and hides what it has read ahead from polls. A poll does see the bytes in
        # the kernel, so a node that never stops sending does not keep the thread here.
        parts = []
        with self._lock:
            try:
                while part := self._sock.recv(_READ_SIZE):
                    parts.append(part)
                    if len(parts) >= _RECORDS and not self._sock.pending():
                        break
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return b"".join(parts) if parts else None
        return b"".join(parts)


class CallLink(Link):
    """A link to a node without a socket (fakeredis): each command is a call, answered at once."""

    instant = True

    def __init__(self, node: Node, channel: Channel) -> None:
        super().__init__(node)
        self.parts = one_by_one
        self._channel = channel
        self._answers: deque[Any] = deque()
        self.read = self._answered
        self.feed = _ignore
        self.gets = self._next

    def write(self, data: bytes) -> None:
        try:
            self._answers.append(self._channel.call(data))
        except RedisError as error:
            if is_interruption(error):
                raise
            raise ConnectionError(describe_error(error)) from error

    def _next(self) -> Any:
        return self._answers.popleft() if self._answers else NOTHING

    def keep(self, data: bytes) -> None:
        self.write(data)

    def flush(self) -> None:
        """Do nothing: nothing is ever left to send."""

    def _answered(self) -> object:
        return self._answers or None

    def shut(self) -> None:
        self._channel.close()

    def forget(self) -> None:
        self._answers.clear()


def speak(link: Any) -> None:
    """Make a link encode commands in its node's dialect."""
    dialect = link.node.dialect
    link.swift = False
    link.parts = lambda batch: [b"".join([dialect.data(request) for request in batch])] if batch else []


def in_one(batch: Sequence[Request]) -> list[bytes]:
    """Return the bytes of all requests as one piece: a link over a socket limits what it keeps, but not the first."""
    return [b"".join([request.data for request in batch])] if batch else []


def one_by_one(batch: Sequence[Request]) -> list[bytes]:
    """Return the bytes of each request, for a link that makes a call for each."""
    return [request.data for request in batch]


def bound_silence(sock: Any) -> None:
    """Make the kernel drop a connection with data unacknowledged for `GIVE_UP`, where it can."""
    if _USER_TIMEOUT is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
        with expected(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, _USER_TIMEOUT, int(GIVE_UP * 1000))


def let_reset(sock: Any) -> None:
    """Make the kernel drop unsent and unacknowledged bytes when the socket is closed."""
    with expected(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)


def _perhaps() -> bool:
    """Return True: a link that can't tell may hold more."""
    return True


def _ignore(_: object) -> None:
    """Do nothing: the answers are already stored."""


def make_link(node: Node, channel: Channel) -> Link:
    """Return the link that fits the connection."""
    if not channel.raw:
        return CallLink(node, channel)
    return TlsLink(node, channel) if isinstance(channel.sock, ssl.SSLSocket) else SocketLink(node, channel)
