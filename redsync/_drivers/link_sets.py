"""Sets of links: what a round needs. A set has one link to each node.

One user at a time has a set: a thread that borrows it, or an event loop. It sends, reads and counts; so nothing here
takes a lock, except the shared tables that `Shared` names. Rounds are mostly decided before all nodes have answered.
The next user of the set reads the late replies, in their order.

The users differ only in how they wait. A thread polls (`LinkSet`); a loop calls back, see `aio_link_sets`.

**An interruption costs the set.** An exception from outside (a signal's handler) may strike between any two steps, and
leave a command half sent, or a reply half handed out. The set is then thrown away: its connections end, the requests
that it had under way have failed, and what their nodes must get becomes a pending release.

**Silence is judged after reading.** A thread may get no processor for longer than a timeout while the replies lie in
its sockets. So before a reply is called missing, the sockets are polled once more, after the deadline.
"""

from __future__ import annotations

import itertools
import math
import os
import select
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Final

import hiredis

from redsync._core.interruptions import expected
from redsync._core.replies import MOST_BYTES, NOTHING
from redsync._core.text import one_line, outline
from redsync._core.timing import Timing
from redsync._drivers.environment import forked
from redsync._drivers.handshake_connections import describe_error, pack
from redsync._drivers.links import GIVE_UP, NOT_NOW, AnyLink, Link, LinkFault
from redsync._drivers.nodes import ConnectionId, Node
from redsync._drivers.pending_releases import PendingReleases, is_refused
from redsync._drivers.requests import NOTHING_TOLD, Request
from redsync._drivers.wakeups import Wakeups
from redsync._signal_safe import SafeLock

__all__ = ["AnyLinkSet", "LinkSet", "Shared"]

_MOST_PENDING: Final = 1000
"""The most commands without an answer over one link, or those of all callers; a node that owes more gets only releases.
"""

_FEW_PENDING: Final = 32
"""The most commands without an answer over a link of a caller that never keep asks from it."""

_PAUSE: Final = 0.1
"""Seconds after a failed connection until a set tries again."""

_data: Final = attrgetter("data")
_PUSH, _ERROR = hiredis.PushNotification, hiredis.ReplyError
_READABLE: Final = getattr(select, "POLLIN", 1)
_WRITABLE: Final = getattr(select, "POLLOUT", 4)
"""Also for epoll: the numbers are the same."""


class Shared(ABC):
    """The state and settings that the sets of one client share: a part of its `AnyLife`.

    Attributes:
        process: The process that uses it.
        nodes: The configured nodes.
        clock: Returns the current instant in seconds.
        node_timeout: Seconds of silence after which a node gets no new claims.
        give_up_after: Seconds of silence after which a connection is replaced: in time to renew over the next one.
        mutex: Guards wake-ups, sleepers and pending releases; reentrant, because a finalizer may come in between.
        releases: The pending releases.
        wakeups: The signals that end sleeps.
        next_number: Returns the next number in the order of the client's commands.
        installed: The links of all sets.
    """

    def __init__(self, nodes: Sequence[Node], clock: Callable[[], float], timing: Timing) -> None:
        self.process: Final = os.getpid()
        self.nodes: Final = nodes
        self.clock: Final = clock
        self.node_timeout: Final = timing.node_timeout
        self.give_up_after: Final = min(max(timing.lease / 3, timing.node_timeout), GIVE_UP)
        self.mutex = SafeLock(threading.RLock())
        self.releases: Final = PendingReleases(len(nodes), self.mutex)
        self.wakeups: Final = Wakeups(self.mutex, clock)
        self.next_number: Final = itertools.count(1).__next__
        self.installed: Final[set[AnyLink]] = set()

    @abstractmethod
    def wake(self) -> None:
        """Make the maintenance look; never blocks."""

    @abstractmethod
    def note_lag(self, node: Node) -> None:
        """Record that a node owes replies for too long."""


class _Select:
    """Polls by `select`, where the system has no `poll`."""

    def __init__(self) -> None:
        self._polled: Final[dict[int, int]] = {}

    def register(self, descriptor: int, events: int) -> None:
        self._polled[descriptor] = events

    modify = register

    def unregister(self, descriptor: int) -> None:
        del self._polled[descriptor]

    def poll(self, timeout_ms: int) -> list[tuple[int, int]]:
        writing = [descriptor for descriptor, events in self._polled.items() if events & _WRITABLE]
        readable, writable, _ = select.select(list(self._polled), writing, [], timeout_ms / 1000)
        return [(each, _READABLE) for each in readable] + [(each, _WRITABLE) for each in writable]


class _Kill(Request):
    """Ends a former connection of this client, which is recorded again if the node does not say that it has ended."""

    def __init__(self, node: Node, connection_id: ConnectionId) -> None:
        super().__init__(NOTHING_TOLD, None)
        self.command = None
        self.data = pack("CLIENT", "KILL", "ID", str(connection_id[1]))
        self._node, self._connection_id = node, connection_id

    def concerns(self, release: Request) -> bool:  # noqa: ARG002  (the connection may have brought anything)
        return True

    def fail(self, index: int, reason: str) -> None:  # noqa: ARG002  (a vote has them)
        self._node.former.add(self._connection_id)

    def take_reply(self, reply: object) -> None:
        if isinstance(reply, str) and reply.startswith("BUSY"):
            raise LinkFault("is too busy to end a former connection")  # The next one begins with that.
        self._node.former.discard(self._connection_id)


class AnyLinkSet(ABC):
    """A link to each node: sending, reading and counting, however one waits.

    Attributes:
        links: The link to each node, None where there is none.
        closed: True once it was thrown away or ended.
    """

    def __init__(self, shared: Shared, poller: Any) -> None:
        """Make a set without links; `poller` polls them, None if nothing does."""
        self.closed = False
        self._process: Final = shared.process
        self._shared: Final = shared
        self._clock: Final = shared.clock
        self._poller: Final = poller
        self._polled: Final[dict[int, Link]] = {}
        self.links: Final[list[Any]] = [None] * len(shared.nodes)
        self._down_reasons: Final = ["no connection yet"] * len(shared.nodes)

    @abstractmethod
    def read(self) -> object:
        """Read what has arrived."""

    def install(self, link: Any) -> None:
        """Put a new link into use."""
        self.links[link.index] = link
        if isinstance(link, Link):
            self._polled[link.fileno] = link
            self._poller.register(link.fileno, _READABLE)
        self._shared.installed.add(link)  # Last: only `discard` takes it out.

    @property
    def owes(self) -> bool:
        """True while nodes owe replies."""
        for link in self.links:  # noqa: SIM110  (a generator costs three times as much, and each round asks)
            if link is not None and link.pending:
                return True
        return False

    # Sending.

    def send(self, *requests: Request) -> None:
        """Send requests to all nodes, in order; count those that do not get one as failed. Never blocks.

        A node without a connection gets nothing, one that owes replies for too long only releases, a quarantined one no
        new claims.
        """
        if os.getpid() != self._process:
            raise forked()
        now = self._clock()
        for request in requests:
            request.number = self._shared.next_number()
        for node in self._shared.nodes:
            link, late, ours = self.links[node.index], False, []
            if link is not None and (link.pending or link.generation != node.generation):
                late = self._is_late(link, now)
                link = self.links[node.index]
            for request in requests:
                reason: str | None = None
                if link is None:
                    reason = self._down_reasons[node.index] if node.connected else node.down_reason
                elif late and not request.needs(node.bit):
                    reason = link.lateness(now)
                elif request.guard:
                    reason = node.ineligible_reason(now, request.guard)
                if reason is None:
                    ours.append(request)
                else:
                    self.miss(node, request, reason)
            if ours:
                self._post(link, ours, now)

    def _is_late(self, link: Any, now: float) -> bool:
        """Return whether a node owes replies for too long, or too many; discard a link to its former server."""
        if link.generation != link.node.generation:
            self.discard(link, link.node.down_reason)
            return False
        if link.silence(now) > self._shared.node_timeout:
            # After the process was suspended, the replies may lie unread.
            self.read()
            self._look_at(link, now)
            if link.silence(now) > self._shared.node_timeout:
                return True
        return self._owes_too_many(link)

    def _owes_too_many(self, link: Any) -> bool:
        return len(link.pending) > _MOST_PENDING

    def _look_at(self, link: Any, now: float) -> None:
        """Suspect a link that has owed replies for too long; give it up after a longer time."""
        silence = link.silence(now)
        if silence > self._shared.node_timeout and not link.suspect:
            link.suspect = True
            link.node.last_error = link.lateness(now)
            self._shared.note_lag(link.node)
        if silence > self._shared.give_up_after:
            # The unanswered commands are lost or late; the next connection gets those that the node must get.
            self.discard(link, f"no answer for {silence:.1f} s")

    def send_to(self, index: int, requests: Sequence[Request], now: float) -> None:
        """Send requests to one node; they become pending releases if there is no link."""
        link = self.links[index]
        if link is None:
            self._shared.releases.add(index, requests)
            self._shared.wake()
            return
        self._post(link, requests, now)

    def deliver(self, node: Node, now: float) -> None:
        """Send a connected node what nothing may overtake: the ends of former connections, then due pending releases.

        From then on the node executes no command of a former connection that it has not read yet. A node or proxy may
        refuse or lack CLIENT KILL: exclusion does not rely on it, see `docs/operate/settings.md`.
        """
        link, releases = self.links[node.index], self._shared.releases
        process = None if node.info is None else node.info.run_id
        for connection_id in sorted(node.former):
            if connection_id[0] == process:  # else it has ended with its process
                self.send_to(node.index, [_Kill(node, connection_id)], now)
            # Only now, for the same reason as below.
            if self.links[node.index] is not link:
                return
            node.former.discard(connection_id)
        due = releases.due(node.index, now, len(link.pending))
        if due:
            # None behind a later command about its claim, which may make it needless.
            under_way = {request.claim for request in link.pending}
            due = [request for request in due if request.claim not in under_way]
        if due:
            self.send_to(node.index, due, now)
            # Only now: after an exception from outside, or the end of the link, the node must still get them.
            if self.links[node.index] is link:
                for request in due:
                    releases.resolve(node.index, request)

    def _post(self, link: Any, requests: Sequence[Request], now: float) -> None:
        """Send requests over a link."""
        for request in requests:
            if request.tally is not None:
                request.tally.sent |= link.bit
        if not link.pending:
            link.since = now
        link.pending.extend(requests)
        try:
            link.write(b"".join(map(_data, requests)) if link.encode is None else link.encode(requests))
        except (LinkFault, OSError) as error:
            self._lose(link, error)
        else:
            if link.backlog:
                self._poll_for(link)

    def _lose(self, link: AnyLink, error: Exception) -> None:
        """Discard a link because of its error, which is being handled; raise the error of a signal handler."""
        if isinstance(error, OSError) and error.errno is None:
            raise  # noqa: PLE0704  (its caller handles it)
        self.discard(link, str(error) if isinstance(error, LinkFault) else describe_error(error))

    # Reading.

    def _serve(self, ready: Sequence[tuple[int, int]]) -> None:
        """Write to and read from the links that a poll has found ready."""
        now = self._clock()
        for descriptor, events in ready:
            link = self._polled.get(descriptor)
            if link is None:
                continue  # It was discarded meanwhile, or it is no link.
            if events & _WRITABLE:
                self._flush(link)
            if events != _WRITABLE:
                try:
                    data = link.receive()
                except OSError as error:
                    if error.errno is None or not isinstance(error, NOT_NOW):
                        self._lose(link, error)
                else:
                    self.receive(link, data, now)

    def _poll_for(self, link: AnyLink) -> None:
        """Poll a link for what it waits for now."""
        if isinstance(link, Link):
            self._poller.modify(link.fileno, _READABLE | _WRITABLE if link.backlog else _READABLE)

    def _flush(self, link: Link) -> None:
        try:
            link.flush()
        except (LinkFault, OSError) as error:
            self._lose(link, error)
        else:
            self._poll_for(link)

    def receive(self, link: AnyLink, data: bytes | None, now: float) -> None:
        """Give each reply in received bytes to the oldest request of its link.

        `data` is empty if the node closed the connection, and None if no bytes are new.
        """
        pending, gets = link.pending, link.gets
        try:
            if data:
                link.unfinished += len(data)
                link.feed(data)
            elif data is not None:
                raise LinkFault("closed the connection")
            while (reply := gets()) is not NOTHING:
                link.unfinished = 0
                kind = reply.__class__
                if kind is _PUSH:
                    self._shared.wakeups.receive(reply, link.node)
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
                # Only a complete answer shows that a node works.
                link.since, link.suspect = now, False
            if link.unfinished > MOST_BYTES:
                raise LinkFault(f"sent a reply of more than {MOST_BYTES} bytes")
        except (LinkFault, OSError, hiredis.HiredisError) as error:
            self._lose(link, error)
        except TypeError as error:
            if "unhashable" not in str(error):
                raise  # a signal handler's; hiredis raises the other one
            self.discard(link, "sent a reply with an unhashable key")

    def _count(self, link: AnyLink, request: Request, reply: Any, now: float) -> None:
        releases = self._shared.releases
        if releases.of_node[link.index].requests:
            releases.resolve(link.index, request)
        tally = request.tally
        if tally is None:
            request.take_reply(reply)
            return
        if request.done:
            return
        if request.guard and link.node.locator is not None and (reason := self._reason_to_doubt(link, request.guard)):
            request.fail(link.index, reason)
            return
        ended = tally.record(link.index, reply, now)
        if ended is None:
            # A proxy may have lost or repeated an answer, which would shift all later replies to other requests.
            raise LinkFault(f"sent an unexpected reply {outline(reply)}")
        if ended:
            request.finish()

    def _reason_to_doubt(self, link: AnyLink, guard: float) -> str | None:
        """Return why a vote that has just come may be that of a former master; None if it is not.

        It counts until its lease ends, however late it was given, so what holds as the command is sent is not enough.
        """
        reason = link.node.unconfirmed(self._clock(), guard)
        return reason or (link.node.down_reason if link.generation != link.node.generation else None)

    def _take_error(self, link: AnyLink, request: Request, text: str, now: float) -> None:
        node = link.node
        if text.startswith("NOSCRIPT") and request.command is not None and self._reload(link, request, now):
            return
        if (reason := node.note_forgetful(text, request.guard, now)) is not None:
            self._shared.wake()
            text = reason
        node.last_error = said = one_line(text)
        request.fail(node.index, said)
        if request.needs(link.bit) and is_refused(text):
            self._shared.releases.refuse(link.index, request, now)
            self._shared.wake()
        request.take_reply(text)

    def _reload(self, link: AnyLink, request: Request, now: float) -> bool:
        """Answer NOSCRIPT: load the script, and send the command again if nothing was sent behind it.

        Returns True if it was sent again.
        """
        assert request.command is not None, "the caller checked it"
        load = Request(NOTHING_TOLD, None)
        load.command = None
        load.data = pack(b"SCRIPT", b"LOAD", request.command.script.source)
        is_last = len(link.pending) == 1 and not request.reloaded & link.bit
        request.reloaded |= link.bit
        self._post(link, [load, request] if is_last else [load], now)
        return is_last

    # The fate of a request.

    def miss(self, node: Node, request: Request, reason: str) -> None:
        """Record that a request does not reach a node now."""
        request.fail(node.index, reason)
        if request.needs(node.bit):
            self._shared.releases.add(node.index, (request,))
            self._shared.wake()

    def close_round(self, request: Request, reason: str) -> None:
        """Count missing votes as failed, which decides the request's tally."""
        tally = request.tally
        if tally is not None:
            for link in self.links:
                if link is not None and not tally.won:
                    tally.fail(link.index, link.explain(reason))
            tally.close(reason)
        request.finish()

    def discard(self, link: AnyLink, reason: str, *, orderly: bool = False) -> None:
        """Stop using a link: unanswered requests have failed, and become pending releases if the node must get them.

        Unsent bytes are dropped, except at an `orderly` end.
        """
        index, shared = link.index, self._shared
        if self.links[index] is not link:
            return
        # Each step may be done twice: an exception may strike in between, and then the link is discarded again.
        if self._polled.get(link.fileno) is link:
            with expected(KeyError, OSError):  # It was done before.
                self._poller.unregister(link.fileno)
            del self._polled[link.fileno]
        if link.connection_id is not None and not orderly:
            link.node.former.add(link.connection_id)
        while link.pending:
            request = link.pending[0]
            request.fail(index, reason)
            shared.releases.add(index, (request,))
            link.pending.popleft()
        # Before it is closed: a closed descriptor may belong to another file soon.
        self._down_reasons[index] = reason
        shared.installed.discard(link)
        self.links[index] = None
        if orderly:
            link.shut()
        else:
            link.reset()
        self.on_discarded(link, reason)
        shared.wake()

    def discard_former(self) -> None:
        """Discard the links that lead to former servers of their nodes."""
        for link in list(self.links):
            if link is not None and link.generation != link.node.generation:
                self.discard(link, link.node.moved() or link.node.down_reason)

    def on_discarded(self, link: AnyLink, reason: str) -> None:  # noqa: B027  (most sets do nothing more)
        """Record that a link is gone: by the links of the maintenance's set, nodes are up or down."""

    def look(self, now: float) -> None:
        """Find links that have owed replies for too long; only after a read that began after `now`."""
        for link in list(self.links):
            if link is not None:
                self._look_at(link, now)

    # The end.

    def end(self, reason: str, *, orderly: bool) -> None:
        """End all connections; if an exception struck in the middle of something, not `orderly`."""
        self.closed = True
        for link in list(self.links):
            if link is not None:
                self.discard(link, reason, orderly=orderly)


class LinkSet(AnyLinkSet):
    """A link to each node, for one thread at a time, which polls it.

    Attributes:
        connecting: The indexes of the nodes to which a connection is being made.
        used_at: The instant at which it was last lent.
    """

    def __init__(self, shared: Shared) -> None:
        """Make a set without links."""
        if os.getpid() != shared.process:
            raise forked()  # A call of the parent, which its handler forked.
        super().__init__(shared, select.poll() if hasattr(select, "poll") else _Select())
        # New connections: index, and the link or why there is none.
        self._arrivals: Final[deque[tuple[int, Link | str]]] = deque()
        self.connecting: Final[set[int]] = set()
        self.retry_at: Final = [0.0] * len(shared.nodes)
        self.used_at = 0.0
        self._watched: int | None = None

    # Which links it has.

    def watch(self, descriptor: int) -> None:
        """Let polls end when that descriptor is readable, too."""
        self._watched = descriptor
        self._poller.register(descriptor, _READABLE)

    def arrive(self, index: int, link: Link | str) -> None:
        """Bring a new connection, or say why there is none; callable in any thread."""
        self._arrivals.append((index, link))
        if self.closed:
            self._drop_arrivals()

    def take_arrivals(self) -> None:
        """Put new connections into use."""
        while self._arrivals:
            index, link = self._arrivals[0]
            self.connecting.discard(index)
            if isinstance(link, Link):
                self.install(link)
            else:
                self.retry_at[index] = self._clock() + _PAUSE
                self._down_reasons[index] = link
            # Removed only now: an interruption must not drop a connection that nothing else refers to.
            self._arrivals.popleft()

    def _drop_arrivals(self) -> None:
        """End new connections of a set that has ended."""
        with expected(IndexError):
            while True:
                _, link = self._arrivals.popleft()
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

    # A round.

    def _owes_too_many(self, link: Link) -> bool:
        if len(link.pending) <= _FEW_PENDING:
            return False
        # Over all sets, as each release looks through all of these, see `keep_behind`. One set may have most of them:
        # a working node may be much further away than the others.
        links = [link_set.links[link.index] for link_set in self._shared.releases.others()]
        return sum([len(each.pending) for each in links if each is not None]) > _MOST_PENDING

    def wait(self, request: Request, deadline: float) -> bool:
        """Read until the request is done, or the deadline has passed and nothing is left to read; return if done."""
        clock = self._clock
        while not request.done:
            left = deadline - clock()
            self.read(left if left > 0 else 0.0)
            if left <= 0:
                break
        return request.done

    def may_win(self, now: float) -> bool:
        """Return True unless too many nodes have no link here, or have owed replies for the node timeout."""
        timeout, working = self._shared.node_timeout, 0
        for link in self.links:
            if link is not None and (not link.pending or link.silence(now) < timeout):
                working += 1
        return working > len(self.links) // 2

    def read(self, timeout: float = 0.0) -> bool:
        """Read what has arrived, and write what was kept; wait at most `timeout` seconds for something to come.

        Returns True if a descriptor of `watch` is readable.
        """
        ready = self._poller.poll(math.ceil(timeout * 1000))
        if os.getpid() != self._process:
            # A signal's handler has forked: what has arrived belongs to the parent.
            raise forked()
        self._serve(ready)
        return self._watched is not None and any(descriptor == self._watched for descriptor, _ in ready)

    # The end.

    def end(self, reason: str, *, orderly: bool) -> None:
        self.closed = True
        self._drop_arrivals()
        super().end(reason, orderly=orderly)
