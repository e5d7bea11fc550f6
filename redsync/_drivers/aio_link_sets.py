"""The set of links of a client for asyncio: one for all its tasks, used in the thread of its loop.

There are two kinds of links:

* `Link`, over a plain socket, where the system has epoll: it reads and writes as in a thread. The loop watches one
  descriptor for all of them. So one callback reads what all nodes have sent by then.
* `StreamLink`, over an asyncio transport: TLS, other systems, and loops of a simulation. The loop reads and writes.

While rounds are under way, everything that tasks send in one turn of the loop goes out in one write per node.

**An interruption costs the connections.** An exception from outside that strikes inside the transport (a signal's
handler, in the loop's callback) throws all links away. The commands that nodes must get become pending releases. The
other tasks' rounds begin again once a quorum is connected, within their timeouts: scripts are idempotent.
"""

from __future__ import annotations

import asyncio
import math
import os
import select
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar, Final

from redsync._core.scripts import Command
from redsync._drivers.handshake_connections import AioHandshakeConnection, describe_error
from redsync._drivers.link_sets import AnyLinkSet, Shared
from redsync._drivers.links import BACKLOG_LIMIT, AnyLink, Link, bound_silence, let_reset
from redsync._drivers.nodes import INTERRUPTED, ConnectionId, Node
from redsync._drivers.requests import Request, Waitable

__all__ = ["AioLinkSet", "StreamLink"]

_PAUSE: Final = 0.005
"""Seconds between two looks whether an interrupted round has a quorum of connections again."""

_LOOK: Final = 0.000004
"""Seconds by which a sleep may end late, per sleep of the set: each look for those that are over goes through all."""


class StreamLink(AnyLink, asyncio.Protocol):
    """A link over an asyncio transport.

    Attributes:
        read_until: The loop has read everything that arrived before this instant.
    """

    def __init__(
        self, node: Node, connection: AioHandshakeConnection, links: AioLinkSet, connection_id: ConnectionId | None
    ) -> None:
        super().__init__(node, connection.reader, connection_id)
        self.read_until = 0.0
        self._links: Final = links
        self._transport, self._keep = connection.take_transport(self)
        self._transport.set_write_buffer_limits(high=BACKLOG_LIMIT)
        sock = self._transport.get_extra_info("socket")
        self._sock: Final[Any] = sock
        if sock is not None:
            bound_silence(sock)

    def write(self, data: bytes) -> None:
        if len(data) > BACKLOG_LIMIT:
            # A new link begins with the releases that its node must get, no matter how many.
            self._transport.set_write_buffer_limits(high=BACKLOG_LIMIT + len(data))
        self._transport.write(data)

    def silence(self, now: float) -> float:
        return max(min(now, self.read_until) - self.since, 0.0) if self.pending else 0.0

    # The loop calls these.

    def data_received(self, data: bytes) -> None:
        self._links.hear(self, data)

    def pause_writing(self) -> None:
        self._links.discard(self, f"does not read: more than {BACKLOG_LIMIT} bytes wait for it")

    def eof_received(self) -> None:
        self._links.hear(self, b"")

    def connection_lost(self, error: Exception | None) -> None:
        self._links.discard(self, "closed the connection" if error is None else describe_error(error))

    # The end.

    def shut(self) -> None:
        # close() would wait for a node that does not read.
        with suppress(RuntimeError):  # If its loop is closed, the connection ends when it is collected.
            self._transport.abort()

    def reset(self) -> None:
        if self._sock is not None:
            let_reset(self._sock)
        self.shut()

    def forget(self) -> None:
        """Do nothing: a forked child can't use its parent's event loop, and must not touch it."""


class AioLinkSet(AnyLinkSet):
    """A link to each node, for all tasks of one loop.

    Attributes:
        WATCHES: True where a loop can watch one descriptor for many sockets.
        closing: True once sleeps must end; rounds still continue.
    """

    WATCHES: ClassVar = hasattr(select, "epoll")

    def __init__(self, shared: Shared, loop: asyncio.AbstractEventLoop, on_broken: Callable[[Node, str], None]) -> None:
        """Make a set without links; `on_broken` is called for each discarded link."""
        super().__init__(shared, select.epoll() if self.WATCHES else None)
        self._loop: Final = loop
        self._on_broken: Final = on_broken
        self._rounds: Final[set[Waitable]] = set()
        self._batch: Final[list[Request]] = []
        self._asleep: Final[dict[Waitable, tuple[asyncio.Future[None], float]]] = {}
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = math.inf
        self._watched = self._reading = self._invalidating = self.closing = False

    # Links.

    def make_link(self, node: Node, connection: AioHandshakeConnection, connection_id: ConnectionId | None) -> AnyLink:
        """Return a link over a new connection."""
        if connection.lost:
            raise ConnectionError("closed the connection")
        if self.WATCHES and connection.is_plain():
            return Link(node, connection, connection_id)
        return StreamLink(node, connection, self, connection_id)

    def install(self, link: AnyLink) -> None:
        """Put a new link into use: before anything else, its node gets its pending releases."""
        self._within(self._install, link)

    def _install(self, link: AnyLink) -> None:
        now = self._clock()
        super().install(link)
        if self._polled and not self._watched:
            self._watched = True
            self._loop.add_reader(self._poller.fileno(), self.read)
        super().deliver(link.node, now)
        # Messages may have come before the link took over.
        self.receive(link, None, now)

    def deliver(self, node: Node, now: float) -> None:
        """Send a connected node the pending releases that are due."""
        self._within(super().deliver, node, now)

    def on_discarded(self, link: AnyLink, reason: str) -> None:
        self._on_broken(link.node, reason)

    # Sending.

    def send_soon(self, request: Request) -> None:
        """Send a request to all nodes, in the order of the calls: at once, or together with others of this turn."""
        # A renewal is made of the holds that live now, so it goes out at once, before one of them ends.
        is_made_late, is_alone = not isinstance(request.effect.command, Command), not self._batch
        self._batch.append(request)
        if is_made_late or (is_alone and not self._rounds) or self._loop.is_closed():
            self.flush()
        elif is_alone or not self._rounds:
            # Other tasks have rounds under way, and are likely to send something in this turn of the loop too. Without
            # any, this comes in the middle of another send, or behind one that was interrupted.
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Send what waits for the end of this turn."""
        try:
            while batch := self._batch[:]:  # A finalizer may add to it, anywhere here.
                self.send(*batch)
                del self._batch[: len(batch)]
        except BaseException:
            self.throw_away()
            raise

    # Waiting.

    async def repeat(self, request: Request, deadline: float) -> None:
        """Begin a round again, over new connections, while it loses votes because an interruption cost its own."""
        while (tally := request.tally) is not None and not tally.won and INTERRUPTED in tally.replies:
            while len(self.links) - self.links.count(None) < tally.quorum:
                if self.closed or self._clock() >= deadline:
                    return
                await asyncio.sleep(_PAUSE)
            request.repeat()
            self.send_soon(request)
            await self.sleep(request, deadline)

    async def sleep(self, waitable: Waitable, until: float) -> None:
        """Return when the waitable is done, at the instant, or when the client closes; rounds wait on.

        A round that ends at the instant has read everything that came by then.
        """
        is_round = isinstance(waitable, Request)
        if not waitable.done and (is_round or not self.closing) and (now := self._clock()) < until:
            future = self._loop.create_future()
            try:
                waitable.waker = partial(_end, future)
                self._asleep[waitable] = future, until
                if is_round:
                    self._rounds.add(waitable)
                if until < self._alarm_at:
                    self._set_alarm(until)
                elif self._alarm_at <= now:  # It is late: an exception struck, or the machine was suspended.
                    self._end_due()
                await future
            finally:
                waitable.waker = None
                self._rounds.discard(waitable)
                self._asleep.pop(waitable, None)
        if is_round and not waitable.done:
            self.look(await self.read_all())

    def _set_alarm(self, at: float) -> None:
        """Let the loop look at an instant for sleeps that are over; inf: never."""
        alarm = None if at == math.inf else self._loop.call_later(at - self._clock(), self._end_due)
        before, self._alarm, self._alarm_at = self._alarm, alarm, at
        if before is not None:
            before.cancel()  # Last: if an exception strikes above, sleeps still end in time.

    def _end_due(self) -> None:
        """End the sleeps that are over, and set the alarm for the others."""
        now, earliest = self._clock(), math.inf
        # Not a list of items: while it makes one, Python 3.11 may collect a sleeper that was dropped.
        for waitable in list(self._asleep):
            future, until = self._asleep.get(waitable, (None, math.inf))
            if future is None or future.done():
                continue
            if waitable.done or until <= now or (self.closing and not isinstance(waitable, Request)):
                _end(future)
            else:
                earliest = min(earliest, until)
        self._set_alarm(max(earliest, now + _LOOK * len(self._asleep)))

    def end_sleeps(self) -> None:
        """End all sleeps but rounds, and let none begin again."""
        self.closing = True
        self._end_due()

    async def read_all(self) -> float:
        """Read everything that has arrived; return the instant of the call."""
        at = self._clock()
        streams = [link for link in self.links if isinstance(link, StreamLink)]
        if streams:
            await asyncio.sleep(0)  # The loop polls,
            await asyncio.sleep(0)  # and hands out what it found.
            for link in streams:
                link.read_until = at
        self.read()
        return at

    # Reading.

    def read(self) -> None:
        # Not in a forked child that runs its parent's loop: what has arrived belongs to the parent. And not in a
        # finalizer that interrupts another read, which would take the replies out of order.
        if self._polled and not self._reading and os.getpid() == self._process:
            try:
                self._reading = True
                self._serve(self._poller.poll(0))
            except BaseException:
                self.throw_away()
                raise
            finally:
                self._reading = False

    def hear(self, link: AnyLink, data: bytes) -> None:
        """Take in what the loop has read from a link; without bytes, the node closed the connection."""
        if self.links[link.index] is link and os.getpid() == self._process:
            self._within(self.receive, link, data, self._clock())

    # Interruptions.

    def _within(self, action: Callable[..., object], *args: Any) -> None:
        """Use the links; an exception from outside costs all of them."""
        try:
            action(*args)
        except BaseException:
            self.throw_away()
            raise

    def throw_away(self) -> None:
        """End all connections, because an exception struck inside; after another one, call it again."""
        if os.getpid() != self._process:
            return
        self._invalidating = True
        for link in list(self.links):
            if link is not None:
                self.discard(link, INTERRUPTED)
        while self._batch:
            # Some nodes may have got it already.
            request = self._batch[0]
            request.number = request.number or self._shared.next_number()
            for node in self._shared.nodes:
                self.miss(node, request, node.down_reason)
            del self._batch[0]
        self._invalidating = False

    def recover(self) -> None:
        """Do what an interruption has kept this set from doing; the maintenance calls it."""
        if self._invalidating:
            self.throw_away()
        self.flush()
        # The loop's timers are late, too, if they were paused while the machine was suspended.
        self._end_due()

    # The end.

    def end(self, reason: str, *, orderly: bool) -> None:
        if os.getpid() != self._process:
            self.closed = True
            return  # The child of a fork shares its parent's poll.
        super().end(reason, orderly=orderly)
        if not self._loop.is_closed():
            self._end_due()
            if self._watched:
                self._loop.remove_reader(self._poller.fileno())
        self._watched = False
        if self._poller is not None:
            self._poller.close()


def _end(sleep: asyncio.Future[None]) -> None:
    # Tasks that outlive their closed loop may be woken when they are garbage-collected.
    if not sleep.done() and not sleep.get_loop().is_closed():
        sleep.set_result(None)
