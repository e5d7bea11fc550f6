"""The transport of a client for asyncio: one connection per node, for all its tasks.

Everything happens in the loop's thread. A task that waits for a round sleeps on a future. The loop reads, and the
transport hands out what it reads at once, see `dispatcher`. While several rounds are under way, everything that their
tasks send in one turn of the loop goes out in one write per node.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Final, cast

from redsync._core.quorum import Tally
from redsync._drivers.aio_links import AioLink, Receiver
from redsync._drivers.alarms import Alarms
from redsync._drivers.dispatcher import Dispatcher
from redsync._drivers.links import Link
from redsync._drivers.nodes import Node
from redsync._drivers.requests import Request, Sleeper
from redsync._drivers.wakeups import Waits

__all__ = ["AioTransport"]


class _Gate:
    """A future that a task sleeps on, with the one method of a lock that wakes it."""

    __slots__ = ("future",)

    def __init__(self, future: asyncio.Future[None]) -> None:
        self.future = future

    def release(self) -> None:
        # It may have been cancelled in the same turn of the loop.
        if not self.future.done():
            self.future.set_result(None)


class AioTransport(Dispatcher):
    """One connection per node.

    Attributes:
        closed: Whether sleeps have to end; only sleepers that `lasts` are still waited for.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        clock: Callable[[], float],
        node_timeout: float,
        loop: asyncio.AbstractEventLoop,
        *,
        on_broken: Callable[[Node, str], None],
        on_change: Callable[[], None],
    ) -> None:
        super().__init__(
            nodes,
            clock,
            node_timeout,
            mutex=cast("threading.Lock", threading.RLock()),  # a finalizer may come in between
            poller=None,
            awaken=Sleeper.wake,
            receive_at_once=self._receive,
            on_broken=on_broken,
            on_change=on_change,
        )
        self._loop: Final = loop
        self._alarms: Final = Alarms(loop, clock)
        self._receiver: Final = Receiver(self._receive_now, self._table.discard)
        self.closed = False
        self._asleep: Final[dict[Sleeper, None]] = {}  # an ordered set
        self._rounds = 0
        self._flushing_soon = False

    # Sending.

    def send(self, request: Request) -> None:
        """Send a request to all nodes, in the order of the calls; never blocks."""
        if not self._rounds:
            self._outbox.send(request)
            return
        # Other rounds are under way, and their tasks are likely to be resumed in this turn of the loop too.
        self._outbox.put(request)
        if not self._flushing_soon:
            self._flushing_soon = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing_soon = False
        self._outbox.flush()

    # Waiting.

    async def wait(self, sleeper: Sleeper, deadline: float) -> None:
        """Return when the sleeper is done, at the deadline, or when the transport is closed."""
        while not sleeper.done and (sleeper.lasts or not self.closed) and self._clock() < deadline:
            gate = sleeper.gate = _Gate(self._loop.create_future())
            alarm = self._alarms.set(deadline, sleeper)
            self._asleep[sleeper] = None
            try:
                await gate.future
            finally:
                sleeper.gate = None
                self._alarms.drop(alarm)
                del self._asleep[sleeper]

    async def wait_for_round(self, request: Request, deadline: float, timeout: float) -> None:
        """Return when the request's tally is decided, at the deadline at the latest."""
        self._rounds += 1
        try:
            await self.wait(request, deadline)
            if not request.done:
                # After a standstill of the process the deadline has passed, but answers may wait to be read.
                self._look_for_suspects(await self._let_loop_read())
                self._table.close(request, f"no answer within {timeout:g} s")
        finally:
            self._rounds -= 1

    async def linger(self, request: Request, tally: Tally, deadline: float) -> None:
        """Return when all nodes have voted in a round that was won, or at the deadline."""
        self._begin_lingering(request, tally)
        await self.wait(request, deadline)
        self._end_lingering(request, tally)

    async def wait_for_wakeup(self, waits: Waits) -> tuple[int, int]:
        """Sleep as the wake-ups ask for; return what they return."""
        with closing(waits):
            while True:
                try:
                    sleeper, until = next(waits)
                except StopIteration as stop:
                    signals: tuple[int, int] = stop.value
                    return signals
                await self.wait(sleeper, until)

    # Reading.

    def _receive_now(self, link: Link) -> None:
        self._receive(link, self._clock())

    async def _let_loop_read(self) -> float:
        """Let the loop read all that has come until now; return the instant of now, since reading may take long."""
        now = self._clock()
        await asyncio.sleep(0)  # It looks for what has come,
        await asyncio.sleep(0)  # and hands that out.
        return now

    async def tend(self) -> bool:
        """Write what is left to be written, look for suspects; return True while nodes owe replies."""
        self._send_due()
        if not self._is_owed_replies():
            return False
        self._look_for_suspects(await self._let_loop_read())
        return self._is_owed_replies()

    # Links.

    def install(self, link: AioLink) -> None:
        """Take a new link into use. What is owed to its node goes first, before any new claim."""
        self._table.install(link)
        link.use(self._receiver)

    # The end.

    def close(self) -> None:
        """End all sleeps, except those of sleepers that last."""
        self.closed = True
        for sleeper in list(self._asleep):
            sleeper.wake()

    def dispose(self) -> None:
        """End all connections. Only after all callers have left."""
        self._alarms.clear()
        self._table.end()
