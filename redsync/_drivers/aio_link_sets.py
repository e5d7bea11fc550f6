"""The set of links of a client for asyncio: one for all its tasks, used in the thread of its loop.

A round sleeps on a gate, a future. One timer serves all deadlines. There are two kinds of links:

* `Link`, over a plain socket, where the system has epoll: it reads and writes as in a thread. The loop watches one
  descriptor for all of them. So one callback reads what all nodes have sent by then.
* `StreamLink`, over an asyncio transport: TLS, other systems, and loops of a simulation. The loop reads and writes.

When that callback has handed out all replies, the tasks whose rounds are decided run on at once, without another turn
of the loop. While rounds are under way, everything that tasks send in one turn of the loop goes out in one write per
node.

**An interruption costs the connections.** An exception from outside that strikes inside the transport (a signal's
handler, in the loop's callback) throws all links away. The commands that nodes must get become pending releases. The
rounds of other tasks are not lost: each node that was connected is *returning*. It is connected again at once, and the
commands that wait for its vote are kept until then, or until that fails. They are sent again, within the timeouts of
their rounds: scripts are idempotent. The same goes for a node that has forgotten its scripts while several commands
were under way.
"""

from __future__ import annotations

import asyncio
import math
import os
import select
from collections import deque
from collections.abc import Callable
from contextvars import Context
from operator import attrgetter
from types import BuiltinFunctionType
from typing import Any, ClassVar, Final

from redsync._core.interruptions import expected
from redsync._core.quorum import Tally
from redsync._drivers.aio_channels import AioChannel
from redsync._drivers.link_sets import AnyLinkSet, Shared
from redsync._drivers.links import BACKLOG_LIMIT, AnyLink, Link, LinkFault, bound_silence, let_reset
from redsync._drivers.nodes import INTERRUPTED, Node, describe_error
from redsync._drivers.requests import Request, Sleeper

__all__ = ["AioLinkSet", "Gate", "StreamLink"]

_READABLE: Final = getattr(select, "EPOLLIN", 1)
_WRITABLE: Final = getattr(select, "EPOLLOUT", 4)

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


class Gate(asyncio.Future[None]):
    """The future that a sleeping task awaits. When it ends, the set lets the task run on, see `AioLinkSet.let_run`.

    Attributes:
        step: The next step of the task, and its context; None before it sleeps, and once it runs.
    """

    def __init__(self, links: AioLinkSet, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._links: Final = links
        self.step: tuple[Callable[[Gate], object], Context] | None = None

    def add_done_callback(self, step: Any, *, context: Context | None = None) -> None:
        """Keep the next step of the task; the task itself calls this."""
        if context is not None and isinstance(step, BuiltinFunctionType):
            self.step = step, context
        else:
            # Tasks written in Python may run their loop inside a step (nest_asyncio): that loop could not read while
            # our own callback has not returned.
            super().add_done_callback(step, context=context)

    def release(self) -> None:
        """End the sleep."""
        if not self.done() and not self.get_loop().is_closed():
            self.set_result(None)
            self._links.let_run(self)

    def cancel(self, msg: Any = None) -> bool:
        """End the sleep by a cancellation."""
        cancelled = super().cancel(msg)
        if cancelled:
            self._links.let_run(self)
        return cancelled


class AioLinkSet(AnyLinkSet):
    """A link to each node, for all tasks of one loop.

    Attributes:
        WATCHES: True where a loop can watch one descriptor for many sockets.
        returning: Bit set of the nodes whose connections were thrown away, until they are back or fail to come back.
        closing: True once sleeps must end; rounds still continue.
    """

    WATCHES: ClassVar = hasattr(select, "epoll")

    def __init__(self, shared: Shared, loop: asyncio.AbstractEventLoop, on_broken: Callable[[Node, str], None]) -> None:
        """Make a set without links; `on_broken` is called for each discarded link."""
        super().__init__(shared)
        self._loop: Final = loop
        self._on_broken: Final = on_broken
        self._rounds = 0
        self._batch: Final[list[Request]] = []
        self._asleep: Final[dict[Sleeper, tuple[Gate, float]]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._rings_at = math.inf
        self._woken: Final[deque[Gate]] = deque()
        self._in_turn = False
        self._epoll: Final[Any] = select.epoll() if self.WATCHES else None
        self._polled: Final[dict[int, Link]] = {}
        self._watched = False
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
            self._polled[link.fileno] = link
            self._epoll.register(link.fileno, _READABLE)
            if not self._watched:
                self._watched = True
                self._loop.add_reader(self._epoll.fileno(), self._read_ready)
        again = self._shared.releases.take(node.index, now)
        if self.returning & link.bit:
            self.returning &= ~link.bit
            for request in self._kept:
                assert request.tally is not None, "the others are not kept"
                voted = request.done or request.tally.cast[link.index] is not None
                if not voted and self.fit(node, (request,), now):
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
        self._within(super().deliver, node, now)

    def on_discarded(self, link: AnyLink, reason: str) -> None:
        self._on_broken(link.node, reason)

    def _poll_for(self, link: AnyLink) -> None:
        if isinstance(link, Link):
            self._epoll.modify(link.fileno, _READABLE | _WRITABLE if link.backlog else _READABLE)

    def _stop_polling(self, link: AnyLink) -> None:
        if isinstance(link, Link) and self._polled.get(link.fileno) is link:
            with expected(OSError):  # It was done before, or the descriptor is closed.
                self._epoll.unregister(link.fileno)
            del self._polled[link.fileno]

    # Sending.

    def send_soon(self, request: Request) -> None:
        """Send a request to all nodes, in the order of the calls: at once, or together with others of this turn."""
        self._batch.append(request)
        if not self._rounds or self._loop.is_closed():
            self.flush()
        elif len(self._batch) == 1 and not self._in_turn:
            # Other tasks have rounds under way, and are likely to send something in this turn of the loop too.
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Send what waits for the end of this turn."""
        try:
            while self._batch:  # A finalizer may add to it.
                count = len(self._batch)
                self.send(*self._batch)
                del self._batch[:count]
        except BaseException:
            self.throw_away()
            raise

    # Waiting.

    async def sleep(self, sleeper: Sleeper, until: float) -> None:
        """Return when the sleeper is done, at the instant, or when the client closes; rounds wait on."""
        is_round = isinstance(sleeper, Request)
        while not sleeper.done and (is_round or not self.closing) and self._clock() < until:
            gate = sleeper.gate = Gate(self, self._loop)
            self._asleep[sleeper] = gate, until
            self._rounds += is_round
            if until < self._rings_at:
                self._set_timer(until)
            try:
                await gate
            finally:
                gate.step = sleeper.gate = None
                del self._asleep[sleeper]
                self._rounds -= is_round
                if isinstance(sleeper, Request):
                    self._kept.pop(sleeper, None)

    async def wait(self, request: Request, deadline: float) -> None:
        """Return once the request is done, or at the deadline, after everything that came by then was read."""
        await self.sleep(request, deadline)
        if not request.done:
            self.look(await self.read_all())

    async def linger(self, request: Request, tally: Tally, deadline: float) -> None:
        """Wait in a won round for the votes of all nodes, at most until the deadline."""
        request.done = not tally.open
        await self.wait(request, deadline)
        request.done = True
        tally.freeze()

    def _set_timer(self, until: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._rings_at = until
        if until < math.inf:
            self._timer = self._loop.call_later(min(until - self._clock(), _LONGEST), self._ring)

    def _ring(self) -> None:
        """Wake the sleepers whose time has come; the loop calls it."""
        now, next_at = self._clock(), math.inf
        for sleeper, (gate, until) in list(self._asleep.items()):
            if sleeper.done or until <= now:
                gate.release()
            elif until < next_at:
                next_at = until
        self._set_timer(next_at)

    def let_run(self, gate: Gate) -> None:
        """Let a task run on: once all replies are handed out, or in the next turn of the loop."""
        self._woken.append(gate)
        if len(self._woken) == 1 and not self._in_turn:
            self._loop.call_soon(self._resume)

    def _resume(self) -> None:
        """Let woken tasks run on; what they send goes out together.

        If an interruption strikes in between, `recover` finds who still sleeps.
        """
        woken, self._in_turn = self._woken, True
        try:
            while woken:
                gate = woken.popleft()
                if gate.step is not None:  # else it runs already
                    step, context = gate.step
                    context.run(step, gate)
        finally:
            self._in_turn = False
            if self._batch:
                self.flush()
            if woken:
                self._loop.call_soon(self._resume)

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
        if not self._polled:
            return
        ready = self._epoll.poll(0, len(self._polled))
        now = self._clock()
        for fileno, events in ready:
            link = self._polled.get(fileno)
            if link is None:
                continue  # It was discarded just now.
            if events & _WRITABLE:
                self._unclog(link)
            if events != _WRITABLE:
                self._take(link, now)

    def _read_ready(self) -> None:
        """Read what has arrived, and let the tasks run on that waited for it; the loop calls it."""
        if os.getpid() != self._process:
            return  # A forked child that runs its parent's loop: what has arrived belongs to the parent.
        self._in_turn = True
        try:
            self.read()
        except BaseException:
            self.throw_away()
            raise
        finally:
            self._resume()

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
        self._in_turn = False
        self.flush()
        self._ring()
        self._woken.extend(gate for gate, _ in self._asleep.values() if gate.done())
        if self._woken:
            self._loop.call_soon(self._resume)

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
        self._drop_kept()
        self._set_timer(math.inf)
        if self._watched and not self._loop.is_closed():
            self._loop.remove_reader(self._epoll.fileno())
        self._watched = False
        if self._epoll is not None:
            self._epoll.close()

    def forget(self, *, close: bool) -> None:
        super().forget(close=close)
        if close and self._epoll is not None:
            self._epoll.close()
