"""Links and sets of links: what a round needs, for one thread at a time.

A *link* is a connection to one node, non-blocking and pipelined. The n-th reply belongs to the n-th command, no matter
which messages come in between: `pending` holds the requests that were sent and are not answered, oldest first.

A *set* has one link to each node. A thread borrows it, sends, polls, reads and counts, and returns it; so nothing
here takes a lock, except the shared tables that `Shared` names. Rounds are mostly decided before all nodes have
answered. The next borrower of the set reads the late replies, in their order.

**An interruption costs the set.** An exception from outside (a signal's handler) may strike between any two steps, and
leave a command half sent, or a reply half handed out. The set is then thrown away: its connections end, the requests
that it had under way have failed, and what their nodes must get becomes a pending release.

**Silence is judged after reading.** A thread may get no processor for longer than a timeout while the replies lie in
its sockets. So before a reply is called missing, the sockets are polled once more, after the deadline.
"""

from __future__ import annotations

import errno
import os
import selectors
import socket
import ssl
import struct
from collections import deque
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any, Final, NamedTuple

import hiredis

from redsync._core.interruptions import expected
from redsync._core.quorum import Tally
from redsync._core.replies import MOST_BYTES, NOTHING
from redsync._core.text import one_line, outline
from redsync._drivers.channels import Channel, pack
from redsync._drivers.kept_calls import receiver, sender
from redsync._drivers.nodes import Node, describe_error
from redsync._drivers.pending_releases import PendingReleases, is_refused
from redsync._drivers.process import forked
from redsync._drivers.requests import NOTHING_TOLD, Request
from redsync._drivers.wakeups import Wakeups

__all__ = ["GIVE_UP", "Link", "LinkFault", "LinkSet", "Shared", "fail"]

GIVE_UP: Final = 10.0
"""Seconds of silence after which a connection is replaced: the node may work again behind a dead connection."""

BACKLOG_LIMIT: Final = 4 << 20
"""The most bytes kept for a node that does not read: plenty, because a hung node gets only releases."""

_MOST_PENDING: Final = 1000
"""The most commands without an answer over one link; a node that owes more gets only releases."""

_MOST_MESSAGES: Final = 20_000
"""The most wake-ups that a node may send in one second: two for each of ten thousand waiters."""

_RECORDS: Final = 4
"""The number of TLS records read at once."""

_NO_LINGER: Final = struct.pack("ii", 1, 0)
_USER_TIMEOUT: Final = getattr(socket, "TCP_USER_TIMEOUT", None)
_NOT_NOW = BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError
_PUSH, _ERROR = hiredis.PushNotification, hiredis.ReplyError
_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class LinkFault(Exception):
    """A node broke its link: it closed the connection, does not read, or sends what no node sends."""


class Shared(NamedTuple):
    """The state and settings that the sets of one client share.

    Attributes:
        nodes: The configured nodes.
        clock: Returns the current instant in seconds.
        node_timeout: Seconds of silence after which a node gets no new claims.
        releases: The pending releases.
        wakeups: The signals that end sleeps.
        next_number: Returns the next number in the order of the client's commands.
        noting: For each node, notes how long a reply took, for observers; empty without observers.
        on_change: Called when the maintenance has something to do; never blocks.
        on_lag: Called with a node that owes replies for too long.
    """

    nodes: Sequence[Node]
    clock: Callable[[], float]
    node_timeout: float
    releases: PendingReleases
    wakeups: Wakeups
    next_number: Callable[[], int]
    noting: Sequence[Callable[[float], object]]
    on_change: Callable[[], None]
    on_lag: Callable[[Node], None]


class Link:
    """One connection to one node.

    Attributes:
        node: The node at the other end.
        generation: The node's `generation` for which it was made; with another one it leads to a former server.
        tag: The server process at the other end, and its number for this connection; None if it reports none.
        pending: The requests that were sent and are not answered, oldest first.
        since: The instant at which the node last completed an answer, or was sent something after it owed nothing.
        backlog: Bytes that the node does not accept now.
        suspect: True if the node owed replies for longer than the node timeout when that was last looked at.
        parts: Returns the bytes of requests that are pending and about to be written.
        feed: Takes received bytes.
        gets: Returns the next complete reply of these; NOTHING if there is none.
        has_more: Returns False if nothing is left behind the reply that `gets` has just returned.
    """

    def __init__(self, node: Node, channel: Channel, tag: tuple[str, int] | None = None) -> None:
        assert channel.sock is not None, "each node has a socket"
        self.node: Final = node
        self.index: Final = node.index
        self.bit: Final = node.bit
        self.generation: Final = node.generation
        self.tag: Final = tag
        self.pending: Final[deque[Request]] = deque()
        self.since = 0.0
        self.backlog = bytearray()
        self.suspect = False
        self._sock: Final[Any] = channel.take()
        self._sock.setblocking(False)
        _bound_silence(self._sock)
        self.fileno: Final[int] = self._sock.fileno()
        self._send: Callable[[bytes], int] = sender(self._sock)
        self._recv: Callable[[], bytes] = receiver(self._sock)
        self._pending_tls = self._sock.pending if isinstance(self._sock, ssl.SSLSocket) else None
        reader = channel.reader
        self.parts: Callable[[Sequence[Request]], list[bytes]] = _in_one
        self.feed: Callable[[Any], object] = reader.feed
        self.gets: Callable[[], Any] = reader.gets
        self.has_more: Callable[[], bool] = reader.has_more
        self._unfinished = self._messages = 0
        self._counted_at = 0.0

    # Out.

    def post(self, requests: Sequence[Request], now: float) -> None:
        """Send requests, and keep what the node does not accept now.

        Raises:
            OSError, LinkFault: The link is broken.
        """
        if not self.pending:
            self.since = now
        self.pending.extend(requests)
        for data in self.parts(requests):
            if self.backlog:
                # A new link begins with the releases that its node must get, no matter how many.
                if len(self.backlog) + len(data) > BACKLOG_LIMIT:
                    raise LinkFault(f"does not read: more than {BACKLOG_LIMIT} bytes wait for it")
                self.backlog += data
                continue
            sent = self._try(data)
            if sent < len(data):
                self.backlog += data[sent:]

    def flush(self) -> None:
        """Send as much of the backlog as the node accepts."""
        while self.backlog and (sent := self._try(self.backlog)):
            del self.backlog[:sent]

    def _try(self, data: bytes | bytearray) -> int:
        try:
            return self._send(bytes(data))
        except _NOT_NOW as error:
            if error.errno is None:
                raise  # a signal handler's
            return 0

    # In.

    def receive(self) -> bytes | None:
        """Return received bytes, none if the node closed the connection; None if nothing has arrived."""
        if self._pending_tls is not None:
            return self._receive_records(self._pending_tls)
        try:
            return self._recv()
        except _NOT_NOW as error:
            if error.errno is None:
                raise
            return None

    def _receive_records(self, left: Callable[[], int]) -> bytes | None:
        """Read record by record: TLS hides from polls what it has read ahead."""
        parts: list[bytes] = []
        try:
            while part := self._recv():
                parts.append(part)
                if len(parts) >= _RECORDS and not left():
                    break
        except _NOT_NOW as error:
            if error.errno is None:
                raise
            return b"".join(parts) if parts else None
        return b"".join(parts)

    def note_answer(self, now: float) -> None:
        """Record a complete answer: only that shows that a node works."""
        self.since, self._unfinished, self.suspect = now, 0, False

    def note_unfinished(self, size: int) -> None:
        """Count bytes that completed no answer."""
        self._unfinished += size
        if self._unfinished > MOST_BYTES:
            raise LinkFault(f"sent a reply of more than {MOST_BYTES} bytes")

    def note_message(self, now: float) -> None:
        """Count a message."""
        self._unfinished = 0
        self._messages += 1
        if self._messages > _MOST_MESSAGES:
            if now - self._counted_at < 1.0:
                raise LinkFault(f"sent more than {_MOST_MESSAGES} messages in a second")
            self._messages, self._counted_at = 0, now

    def silence(self, now: float) -> float:
        """Return for how many seconds the node has owed replies."""
        return now - self.since if self.pending else 0.0

    def owes(self, request: Request) -> bool:
        """Return whether the node owes a reply to a command for the same claim; callable in any thread."""
        claim = request.claim
        return any(earlier.claim == claim for earlier in list(self.pending))

    # The end.

    def shut(self) -> None:
        """End the connection; written bytes still reach the node."""
        # The system soon gives the descriptor to another connection.
        self._send = self._recv = _closed
        with expected(OSError):  # ENOTCONN: the node was quicker.
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    def reset(self) -> None:
        """Drop the connection: written bytes that have not left this machine never will."""
        # After a plain shutdown the kernel would keep sending unacknowledged bytes for minutes. The shutdown also ends
        # the copy that a forked child may have.
        with expected(OSError):
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self.shut()

    def forget(self, *, close: bool) -> None:
        """In the child of a fork: drop the copy of the parent's socket without a word to the node."""
        descriptor = self._sock.detach()
        if close and descriptor >= 0:
            socket.close(descriptor)


class LinkSet:
    """A link to each node, for one thread at a time.

    Attributes:
        links: The link to each node, None where there is none.
        following: Requests that must go over this very set, each with the index of its node: they follow a command that
            was sent over it and may be executed late. Any thread may append.
        arrivals: New connections for this set: index, and the link or why there is none. Any thread may put.
        connecting: The indexes of the nodes to which a connection is being made.
        used_at: The instant at which it was last returned.
        closed: True once it was thrown away or ended.
    """

    def __init__(self, shared: Shared, on_dropped: Callable[[LinkSet], None] | None = None) -> None:
        """Make a set without links; `on_dropped` gets it if all references to it were dropped before its end."""
        self.closed = False
        self._on_dropped: Final = on_dropped
        self._process: Final = os.getpid()
        self._shared: Final = shared
        self._clock: Final = shared.clock
        self.links: Final[list[Link | None]] = [None] * len(shared.nodes)
        self.following: Final[deque[tuple[int, Request]]] = deque()
        self.arrivals: Final[SimpleQueue[tuple[int, Link | str]]] = SimpleQueue()
        self.connecting: Final[set[int]] = set()
        self.retry_at: Final = [0.0] * len(shared.nodes)
        self._excuses: Final = ["no connection yet"] * len(shared.nodes)
        self.used_at = 0.0
        self._selector: Final = selectors.DefaultSelector()

    def __del__(self) -> None:
        # An exception may have dropped the frame that had borrowed it.
        if not self.closed and self._on_dropped is not None:
            self._on_dropped(self)

    # Which links it has.

    def install(self, link: Link) -> None:
        """Put a new link into use."""
        self.links[link.index] = link
        self._selector.register(link.fileno, _READ, link)

    def watch(self, descriptor: int) -> None:
        """Let polls end when that descriptor is readable, too."""
        self._selector.register(descriptor, _READ, None)

    def take_arrivals(self, timeout: float = 0.0) -> bool:
        """Put new connections into use; wait for the next one if there is none yet. Returns True if one came."""
        came = False
        while True:
            try:
                index, link = self.arrivals.get(timeout=timeout) if timeout > 0 else self.arrivals.get_nowait()
            except Empty:
                return came
            came, timeout = True, 0.0
            self.connecting.discard(index)
            if isinstance(link, Link):
                self.install(link)
            else:
                self.retry_at[index] = self._clock() + _PAUSE
                self._excuses[index] = link

    def drop_arrivals(self) -> None:
        """End new connections of a set that has ended."""
        while True:
            try:
                _, link = self.arrivals.get_nowait()
            except Empty:
                return
            if isinstance(link, Link):
                link.shut()

    def missing(self, now: float) -> list[Node]:
        """Return the nodes that are known to be up, and have no link here; record that they are being connected."""
        nodes = [
            node
            for node in self._shared.nodes
            if node.connected
            and self.links[node.index] is None
            and node.index not in self.connecting
            and self.retry_at[node.index] <= now
        ]
        self.connecting.update(node.index for node in nodes)
        return nodes

    def can_have(self, quorum: int) -> bool:
        """Return whether a quorum of the nodes is connected here, or known to be up."""
        return sum(self.links[node.index] is not None or node.connected for node in self._shared.nodes) >= quorum

    @property
    def owes(self) -> bool:
        """True while nodes owe replies."""
        return any(link is not None and link.pending for link in self.links)

    # Sending.

    def send(self, request: Request) -> None:
        """Send a request to all nodes; count those that do not get it as failed. Never blocks."""
        if os.getpid() != self._process:
            raise forked()
        now = self._clock()
        shared, links, timeout = self._shared, self.links, self._shared.node_timeout
        if self.following:
            self.follow(now)
        for link in links:
            if link is not None and link.pending and now - link.since > timeout:
                # After the process was suspended, the replies may lie unread.
                self.read(0.0)
                break
        request.number = shared.next_number()
        tally, guard, ours = request.tally, request.guard, (request,)
        for node in shared.nodes:
            link = links[node.index]
            if link is None or guard or link.pending or link.generation != node.generation:
                reason = self._unfit(node, link, request, now)
                if reason is not None or link is None:
                    self.miss(node, request, reason or node.excuse, now)
                    continue
            if tally is not None:
                tally.sent |= link.bit
            self._post(link, ours, now)

    def _post(self, link: Link, requests: Sequence[Request], now: float) -> None:
        try:
            link.post(requests, now)
        except LinkFault as fault:
            self.discard(link, str(fault))
        except OSError as error:
            if error.errno is None:
                raise  # a signal handler's
            self.discard(link, describe_error(error))
        else:
            if link.backlog:
                self._poll_for(link)

    def _unfit(self, node: Node, link: Link | None, request: Request, now: float) -> str | None:
        """Return why a node does not get a request; None if it does.

        A node without a connection gets nothing, one that owes replies for too long only releases, a quarantined one no
        new claims.
        """
        if link is None:
            return self._excuses[node.index] if node.connected else node.excuse
        if link.generation != node.generation:
            self.discard(link, node.excuse)
            return node.excuse
        silence = link.silence(now)
        if (silence > self._shared.node_timeout or len(link.pending) > _MOST_PENDING) and not request.owed(link.bit):
            self._doubt(link, silence)
            return f"owes {len(link.pending)} replies for {silence:.2f} s"
        return node.unfit(now, request.guard) if request.guard else None

    def _doubt(self, link: Link, silence: float) -> None:
        if not link.suspect:
            link.suspect = True
            link.node.last_error = f"owes {len(link.pending)} replies for {silence:.2f} s"
            self._shared.on_lag(link.node)
        if silence > GIVE_UP:
            # The unanswered commands are lost or late; the next connection gets those that the node must get.
            self.discard(link, f"no answer for {silence:.0f} s")

    def follow(self, now: float) -> None:
        """Send what must follow a command of this set."""
        while self.following:
            index, request = self.following.popleft()
            self.send_to(index, [request], now)

    def send_to(self, index: int, requests: Sequence[Request], now: float) -> None:
        """Send requests to one node; they become pending releases if there is no link."""
        link = self.links[index]
        if link is None:
            self._shared.releases.add(index, requests, now)
            self._shared.on_change()
        else:
            self._post(link, requests, now)

    def _poll_for(self, link: Link) -> None:
        self._selector.modify(link.fileno, _READ | _WRITE if link.backlog else _READ, link)

    # A round.

    def wait(self, request: Request, deadline: float) -> bool:
        """Read until the request is done, or the deadline has passed and nothing is left to read; return if done."""
        clock = self._clock
        while not request.done:
            left = deadline - clock()
            self.read(left if left > 0 else 0.0)
            if left <= 0:
                break
        return request.done

    def linger(self, request: Request, tally: Tally, deadline: float) -> None:
        """Wait in a won round for the votes of all nodes, at most until the deadline."""
        request.done = not tally.open
        self.wait(request, deadline)
        request.done = True
        tally.freeze()

    # Reading.

    def read(self, timeout: float) -> bool:
        """Read what has arrived, and write what was kept; wait at most `timeout` seconds for something to come.

        Returns True if a descriptor of `watch` is readable.
        """
        ready = self._selector.select(timeout)
        if os.getpid() != self._process:
            # A signal's handler has forked: what has arrived belongs to the parent.
            raise forked()
        now = self._clock()
        watched = False
        for key, events in ready:
            link = key.data
            if link is None:
                watched = True
            elif self.links[link.index] is link:
                if events & _WRITE:
                    self._unclog(link)
                if events & _READ and self.links[link.index] is link:
                    self._take(link, now)
        return watched

    def _unclog(self, link: Link) -> None:
        try:
            link.flush()
        except OSError as error:
            if error.errno is None:
                raise
            self.discard(link, describe_error(error))
            return
        if not link.backlog:
            self._poll_for(link)

    def _take(self, link: Link, now: float) -> None:
        """Read one link, and hand out its replies."""
        try:
            data = link.receive()
            if data is None:
                return
            if not data:
                raise LinkFault("closed the connection")
            link.feed(data)
            if not self._hand_out(link, now):
                link.note_unfinished(len(data))
        except LinkFault as fault:
            self.discard(link, str(fault))
        except hiredis.HiredisError as error:
            self.discard(link, describe_error(error))
        except OSError as error:
            if error.errno is None:
                raise
            self.discard(link, describe_error(error))

    def _hand_out(self, link: Link, now: float) -> bool:
        """Give each reply to the oldest request of its link; return whether there was one."""
        pending = link.pending
        some = False
        while (reply := self._next_reply(link)) is not NOTHING:
            some = True
            kind = reply.__class__
            if kind is _PUSH:
                link.note_message(now)
                self._shared.wakeups.take_in(reply, link.node)
                continue
            if not pending:
                raise LinkFault("sent a reply to no command")
            # Removed only once it is counted: if that ends the link, the request counts as missed.
            request = pending[0]
            if kind is _ERROR:
                self._take_error(link, request, str(reply), now)
            else:
                self._count(link, request, reply, now)
            if pending:  # else the link was discarded
                pending.popleft()
            link.note_answer(now)
        return some

    @staticmethod
    def _next_reply(link: Link) -> Any:
        try:
            return link.gets()
        except TypeError as error:
            if not str(error).startswith("unhashable"):
                raise  # a signal handler's
            raise LinkFault("sent a reply with an unhashable key") from error

    def _count(self, link: Link, request: Request, reply: Any, now: float) -> None:
        tally = request.tally
        if request.pending_release:
            self._shared.releases.settle(link.index, request, now)
        if tally is None:
            request.settle(reply)
            return
        if request.done and not tally.late:
            return
        noting = self._shared.noting
        if noting and not request.done:
            noting[link.index](max(now - tally.sent_at, 0.0))
        ended = tally.record(link.index, reply)
        if ended is None:
            # A proxy may have lost or repeated an answer, which would shift all later replies to other requests.
            raise LinkFault(f"sent an unexpected reply {outline(reply)}")
        if ended:
            request.finish()

    def _take_error(self, link: Link, request: Request, text: str, now: float) -> None:
        node = link.node
        if text.startswith("NOSCRIPT") and request.command is not None:
            self._reload(link, request, now)
            return
        if (reason := node.note_forgetful(text, request.guard, now)) is not None:
            self._shared.on_change()
            text = reason
        node.last_error = said = one_line(text)
        fail(request, node, said)
        if request.owed(link.bit) and is_refused(text):
            self._shared.releases.refuse(link.index, request, now)
            self._shared.on_change()
        elif request.pending_release:
            self._shared.releases.settle(link.index, request, now)
        request.settle(text)

    def _reload(self, link: Link, request: Request, now: float) -> None:
        """Answer NOSCRIPT: load the script and send the command again, if nothing was sent behind it; else reconnect.

        A new connection begins with all scripts.
        """
        assert request.command is not None, "the caller checked it"
        if len(link.pending) > 1 or request.reloaded & link.bit:
            raise LinkFault("had forgotten its scripts")
        request.reloaded |= link.bit
        load = Request(NOTHING_TOLD, None)
        load.command = None
        load.data = pack(b"SCRIPT", b"LOAD", link.node.dialect.script(request.command.script).source)
        link.post([load, request], now)

    # The fate of a request.

    def miss(self, node: Node, request: Request, reason: str, now: float) -> None:
        """Record that a request does not reach a node now."""
        fail(request, node, reason)
        if request.owed(node.bit):
            self._shared.releases.add(node.index, (request,), now)
            self._shared.on_change()

    def close_round(self, request: Request, reason: str) -> None:
        """Count missing votes as failed, which decides the request's tally."""
        if request.tally is not None:
            request.tally.close(reason)
        request.finish()

    def discard(self, link: Link, reason: str, *, orderly: bool = False) -> None:
        """Stop using a link: unanswered requests have failed, and become pending releases if the node must get them.

        Unsent bytes are dropped, except at an `orderly` end.
        """
        now, index, shared = self._clock(), link.index, self._shared
        if self.links[index] is not link:
            return
        self.links[index] = None
        self._selector.unregister(link.fileno)
        if link.tag is not None and not orderly:
            link.node.note_former(link.tag)
        for request in link.pending:
            fail(request, link.node, reason)
        shared.releases.add(index, link.pending, now, unanswered=bool(link.pending))
        link.pending.clear()
        if orderly:
            link.shut()
        else:
            link.reset()
        self.on_discarded(link, reason)
        shared.on_change()

    def on_discarded(self, link: Link, reason: str) -> None:
        """Do nothing more: only the maintenance's set knows from its links which nodes are up."""

    def look(self, now: float) -> None:
        """Find links that have owed replies for too long; only after a read that began after `now`."""
        for link in list(self.links):
            if link is not None and (silence := link.silence(now)) > self._shared.node_timeout:
                self._doubt(link, silence)

    # The end.

    def end(self, reason: str, *, orderly: bool) -> None:
        """End all connections; if an exception struck in the middle of something, not `orderly`."""
        self.closed = True
        self.drop_arrivals()
        for link in list(self.links):
            if link is not None:
                self.discard(link, reason, orderly=orderly)
        self.follow(self._clock())
        self._selector.close()

    def forget(self, *, close: bool) -> None:
        """In the child of a fork: drop the copies of the parent's sockets, closed or left open."""
        self.closed = True
        for link in self.links:
            if link is not None:
                link.forget(close=close)
        if close:
            self._selector.close()


_PAUSE: Final = 0.1
"""Seconds after a failed connection until a set tries again."""


def fail(request: Request, node: Node, reason: str) -> None:
    """Count a node's vote as failed."""
    tally = request.tally
    if tally is not None and tally.fail(node.index, reason):
        request.finish()


def _closed(*_: object) -> Any:
    raise OSError(errno.EBADF, os.strerror(errno.EBADF))


def _in_one(requests: Sequence[Request]) -> list[bytes]:
    return [requests[0].data] if len(requests) == 1 else [b"".join([request.data for request in requests])]


def _bound_silence(sock: Any) -> None:
    """Make the kernel drop a connection with data unacknowledged for `GIVE_UP`, where it can."""
    if _USER_TIMEOUT is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
        with expected(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, _USER_TIMEOUT, int(GIVE_UP * 1000))
