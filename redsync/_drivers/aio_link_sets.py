"""The set of links of a client for asyncio: one for all its tasks, used in the thread of its loop.

A round waits on a future, with a timer for its deadline. There are two kinds of links:

* `Link`, over a plain socket: the loop watches its descriptor, and the link reads and writes as in a thread.
* `StreamLink`, over an asyncio transport: TLS, Windows, and loops of a simulation. The loop reads and writes.

While rounds are under way, everything that tasks send in one turn of the loop goes out in one write per node.

**An interruption costs the connections.** An exception from outside that strikes inside the transport (a signal's
handler, in the loop's callback) throws all links away. The commands that nodes must get become pending releases. The
rounds of other tasks are not lost: each node that was connected is *returning*. It is connected again at once, and the
commands that wait for its vote are kept until then, or until that fails. They are sent again, within the timeouts of
their rounds: scripts are idempotent. The same goes for a node that has forgotten its scripts while several commands
were under way.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from operator import attrgetter
from typing import Any, ClassVar, Final

from redsync._core.quorum import Tally
from redsync._drivers.aio_channels import AioChannel
from redsync._drivers.link_sets import AnyLinkSet, Shared
from redsync._drivers.links import BACKLOG_LIMIT, AnyLink, Link, LinkFault, bound_silence, let_reset
from redsync._drivers.nodes import INTERRUPTED, Node, describe_error
from redsync._drivers.requests import Request, Sleeper

__all__ = ["AioLinkSet", "Gate", "StreamLink"]

_LONGEST: Final = 86_400.0
"""The longest sleep in seconds; some loops know no longer ones."""


class StreamLink(AnyLink, asyncio.Protocol):
    """A link over an asyncio transport.

    Attributes:
        read_until: The loop has read everything that arrived before this instant.
    """

    def __init__(self, node: Node, channel: AioChannel, links: AioLinkSet, tag: tuple[str, int] | None = None) -> None:
        super().__init__(node, channel.reader, tag)
        self.read_until = 0.0
        self._links: Final = links
        self._transport, self._keep = channel.take_transport(self)
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
        self._transport.abort()

    def reset(self) -> None:
        if self._sock is not None:
            let_reset(self._sock)
        self.shut()

    def forget(self, *, close: bool) -> None:
        """Do nothing: a forked child can't use its parent's event loop, and must not touch it."""


class Gate:
    """Ends the sleep of a task."""

    __slots__ = ("_future", "_loop")

    def __init__(self, future: asyncio.Future[None], loop: asyncio.AbstractEventLoop) -> None:
        self._future, self._loop = future, loop

    def release(self) -> None:
        if not self._future.done() and not self._loop.is_closed():
            self._future.set_result(None)


class AioLinkSet(AnyLinkSet):
    """A link to each node, for all tasks of one loop.

    Attributes:
        WATCHES: True where loops can watch a descriptor.
        returning: Bit set of the nodes whose connections were thrown away, until they are back or fail to come back.
        closing: True once sleeps must end; rounds still continue.
    """

    WATCHES: ClassVar = sys.platform != "win32"

    def __init__(self, shared: Shared, loop: asyncio.AbstractEventLoop, on_broken: Callable[[Node, str], None]) -> None:
        """Make a set without links; `on_broken` is called for each discarded link."""
        super().__init__(shared)
        self._loop: Final = loop
        self._on_broken: Final = on_broken
        self._rounds = 0
        self._batch: Final[list[Request]] = []
        self._asleep: Final[dict[Sleeper, tuple[Gate, float]]] = {}
        self._torn = False
        self.returning = 0
        self._kept: Final[dict[Request, None]] = {}
        self.closing = False

    # Links.

    def make_link(self, node: Node, channel: AioChannel, tag: tuple[str, int] | None) -> AnyLink:
        """Return a link over a new connection."""
        if channel.lost is not None:
            raise ConnectionError(channel.lost)
        if self.WATCHES and channel.is_plain():
            return Link(node, channel, tag)
        return StreamLink(node, channel, self, tag)

    def install(self, link: AnyLink) -> None:
        """Put a new link into use: before anything else, its node gets pending releases and what was kept for it."""
        self._within(self._install, link)

    def _install(self, link: AnyLink) -> None:
        node, now = link.node, self._clock()
        self.links[link.index] = link
        if isinstance(link, Link):
            self._loop.add_reader(link.fileno, self._read_ready, link)
        again = self._due(node, now)
        if self.returning & link.bit:
            self.returning &= ~link.bit
            for request in self._kept:
                assert request.tally is not None, "the others are not kept"
                voted = request.done or request.tally.cast[link.index] is not None
                if not voted and self._takes(node, self.links, request, now):
                    request.tally.sent |= link.bit
                    again.append(request)
            again.sort(key=attrgetter("number"))
        if again:
            self.send_to(link.index, again, now)
        self._drop_kept()
        # Messages may have come before the link took over.
        self.take_in(link, None, now)

    def deliver(self, node: Node, now: float) -> None:
        """Send a connected node the pending releases that are due."""
        self._within(self._deliver, node, now)

    def _deliver(self, node: Node, now: float) -> None:
        if batch := self._due(node, now):
            self.send_to(node.index, batch, now)

    def _due(self, node: Node, now: float) -> list[Request]:
        batch = self._shared.releases.take(node.index, now)
        for request in batch:
            request.pending_release = True
        return batch

    def on_discarded(self, link: AnyLink, reason: str) -> None:
        self._on_broken(link.node, reason)

    def _poll_for(self, link: AnyLink) -> None:
        if link.backlog:
            self._loop.add_writer(link.fileno, self._write_ready, link)
        else:
            self._loop.remove_writer(link.fileno)

    def _stop_polling(self, link: AnyLink) -> None:
        if isinstance(link, Link) and not self._loop.is_closed():
            self._loop.remove_reader(link.fileno)
            self._loop.remove_writer(link.fileno)

    # Sending.

    def send_soon(self, request: Request) -> None:
        """Send a request to all nodes, in the order of the calls: at once, or together with others of this turn."""
        self._batch.append(request)
        if len(self._batch) > 1:
            return
        if self._rounds and not self._loop.is_closed():
            # Other tasks have rounds under way, and are likely to send something in this turn of the loop too.
            self._loop.call_soon(self.flush)
        else:
            self.flush()

    def flush(self) -> None:
        """Send what waits for the end of this turn."""
        self._within(self._flush)

    def _flush(self) -> None:
        while self._batch:  # A finalizer may add to it.
            count = len(self._batch)
            self.send(*self._batch)
            del self._batch[:count]

    # Waiting.

    async def wait(self, request: Request, deadline: float) -> None:
        """Return once the request is done, or at the deadline, after everything that came by then was read."""
        self._rounds += 1
        try:
            while not request.done and (left := deadline - self._clock()) > 0:
                await self._sleep(request, left)
        finally:
            self._rounds -= 1
            self._kept.pop(request, None)
        if not request.done:
            self.look(await self.read_all())

    async def linger(self, request: Request, tally: Tally, deadline: float) -> None:
        """Wait in a won round for the votes of all nodes, at most until the deadline."""
        request.done = not tally.open
        await self.wait(request, deadline)
        request.done = True
        tally.freeze()

    async def sleep(self, sleeper: Sleeper, until: float) -> None:
        """Return when the sleeper is done, at the instant, or when the client closes."""
        while not (sleeper.done or self.closing) and (left := until - self._clock()) > 0:
            await self._sleep(sleeper, left)

    async def _sleep(self, sleeper: Sleeper, seconds: float) -> None:
        """Sleep until the sleeper is woken, or for some seconds at most."""
        future = self._loop.create_future()
        gate = sleeper.gate = Gate(future, self._loop)
        timer = self._loop.call_later(min(seconds, _LONGEST), gate.release)
        self._asleep[sleeper] = gate, self._clock() + seconds
        try:
            await future
        finally:
            timer.cancel()
            sleeper.gate = None
            del self._asleep[sleeper]

    def end_sleeps(self) -> None:
        """End all sleeps but rounds, and let none begin again."""
        self.closing = True
        for sleeper, (gate, _) in list(self._asleep.items()):
            if not isinstance(sleeper, Request):
                gate.release()

    async def read_all(self) -> float:
        """Read everything that has arrived; return the instant of the call."""
        at = self._clock()
        streams = [link for link in self.links if isinstance(link, StreamLink)]
        if streams:
            await asyncio.sleep(0)  # The loop polls,
            await asyncio.sleep(0)  # and hands out what it found.
            for link in streams:
                link.read_until = at
        self._within(self.read)
        return at

    # Reading.

    def read(self) -> None:
        for link in list(self.links):
            if isinstance(link, Link):
                self._take(link, self._clock())

    def _read_ready(self, link: Link) -> None:
        """Read a link that has something; the loop calls it."""
        if os.getpid() != self._process:
            return  # A forked child that runs its parent's loop: what has arrived belongs to the parent.
        try:
            self._take(link, self._clock())
        except BaseException:
            self.throw_away()
            raise

    def _write_ready(self, link: Any) -> None:
        """Write what was kept for a node that reads on; the loop calls it."""
        if os.getpid() == self._process:
            self._within(self._unclog, link)

    def hear(self, link: AnyLink, data: bytes) -> None:
        """Take in what the loop has read from a link; without bytes, the node closed the connection."""
        if self.links[link.index] is link and os.getpid() == self._process:
            self._within(self.take_in, link, data, self._clock())

    def _reload(self, link: AnyLink, request: Request, now: float) -> None:
        try:
            super()._reload(link, request, now)
        except LinkFault:
            # Many rounds may be under way, and all nodes may have forgotten their scripts at once.
            self.returning |= link.bit
            raise

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
        self._torn, now = True, self._clock()
        for link in list(self.links):
            if link is not None:
                self.returning |= link.bit
                self.discard(link, INTERRUPTED)
        while self._batch:
            # Some nodes may have got it already.
            request = self._batch[0]
            request.number = request.number or self._shared.next_number()
            for node in self._shared.nodes:
                self.miss(node, request, node.excuse, now)
            del self._batch[0]
        self._torn = False

    def recover(self) -> None:
        """Catch up on what an exception has kept the loop's callbacks from doing."""
        if self._torn:
            self.throw_away()
        self.flush()
        now = self._clock()
        for sleeper, (gate, until) in list(self._asleep.items()):
            if sleeper.done or until <= now:
                gate.release()

    def fail(self, request: Request, node: Node, reason: str) -> None:
        """Count a node's vote as failed, unless the node is returning."""
        if not self.returning & node.bit:
            super().fail(request, node, reason)
        elif request.tally is not None and not request.done and not request.owed(node.bit):
            self._kept[request] = None

    def note_failed(self, node: Node, reason: str) -> None:
        """Record that a node could not be connected: it is not returning any more."""
        if self.returning & node.bit:
            self.returning &= ~node.bit
            for request in self._kept:
                super().fail(request, node, reason)
            self._drop_kept()

    def _drop_kept(self) -> None:
        if not self.returning:
            self._kept.clear()

    # The end.

    def end(self, reason: str, *, orderly: bool) -> None:
        self.returning = 0
        super().end(reason, orderly=orderly)
