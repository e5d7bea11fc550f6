"""The transport of a client for asyncio: one connection per node, for all its tasks.

Everything happens in the loop's thread. A task that waits for a round sleeps on a future. The loop reads, and the
transport hands out the replies at once, see `dispatcher`. While several rounds are in flight, everything that their
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
from redsync._drivers.nodes import Node
from redsync._drivers.requests import Request, Sleeper
from redsync._drivers.wakeups import Waits

__all__ = ["AioTransport"]


class _Gate:
    """A future that a task sleeps on, with a lock's `release` to wake it."""

    __slots__ = ("future",)

    def __init__(self, future: asyncio.Future[None]) -> None:
        self.future = future

    def release(self) -> None:
        # The future may have been cancelled in this turn of the loop.
        if not self.future.done():
            self.future.set_result(None)


class AioTransport(Dispatcher):
    """One connection per node.

    Attributes:
        closed: True once sleeps must end; only a sleeper that `lasts`, as each round does, sleeps on.
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
        self._asleep: Final = self._alarms.asleep
        self._receiver: Final = Receiver(self._take_in, self._table.discard, clock)
        self.closed = False
        self._rounds = 0
        self._flushing_soon = False

    # Sending.

    def send(self, request: Request) -> None:
        """Send a request to all nodes, in the order of the calls; never blocks."""
        self._outbox.items.append(request)
        if not self._rounds:
            self._outbox.flush()
        elif not self._flushing_soon:
            # Other rounds are in flight, and their tasks are likely to resume in this turn of the loop too.
            self._flushing_soon = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing_soon = False
        self._outbox.flush()

    # Waiting.

    async def wait(self, sleeper: Sleeper, deadline: float) -> None:
        """Return when the sleeper is done, at the deadline, or when the transport closes."""
        while not sleeper.done and (sleeper.lasts or not self.closed) and self._clock() < deadline:
            future = self._loop.create_future()
            sleeper.gate = _Gate(future)
            if deadline < self._alarms.next:
                self._alarms.arm(deadline)
            self._asleep[sleeper] = deadline
            self._rounds += sleeper.lasts
            try:
                await future
            finally:
                self._rounds -= sleeper.lasts
                sleeper.gate = None
                alarm = self._asleep.pop(sleeper)
                if isinstance(alarm, list):
                    alarm[2] = None

    async def end_round(self, request: Request, timeout: float) -> None:
        """Decide a tally that has waited to its deadline."""
        # After the process was suspended, the deadline has passed, but unread answers may be waiting.
        self._look_for_suspects(await self._let_loop_read())
        self._table.close(request, f"no answer within {timeout:g} s")

    async def linger(self, request: Request, tally: Tally, deadline: float) -> None:
        """Return when all nodes have voted in a won round, or at the deadline."""
        self._begin_lingering(request, tally)
        await self.wait(request, deadline)
        self._end_lingering(request, tally)

    async def wait_for_wakeup(self, waits: Waits) -> tuple[int, int]:
        """Sleep through the waits and return their result."""
        with closing(waits):
            while True:
                try:
                    sleeper, until = next(waits)
                except StopIteration as stop:
                    signals: tuple[int, int] = stop.value
                    return signals
                await self.wait(sleeper, until)

    # Reading.

    async def _let_loop_read(self) -> float:
        """Let the loop read everything received so far; return the instant of the call, as reading may take long."""
        now = self._clock()
        await asyncio.sleep(0)  # The loop polls,
        await asyncio.sleep(0)  # and hands out what it found.
        return now

    async def tend(self) -> bool:
        """Write due repeats and leftovers, look for suspects; return True while nodes owe replies."""
        self._send_due()
        if not self._is_owed_replies():
            return False
        self._look_for_suspects(await self._let_loop_read())
        return self._is_owed_replies()

    # Links.

    def install(self, link: AioLink) -> None:
        """Put a new link into use. Commands owed to its node go out before any new claim."""
        self._table.install(link)
        link.use(self._receiver)

    # The end.

    def close(self) -> None:
        """End all sleeps, except those of sleepers that `lasts`."""
        self.closed = True
        for sleeper in list(self._asleep):
            sleeper.wake()

    def dispose(self) -> None:
        """End all connections; only after all callers have left."""
        self._alarms.clear()
        self._table.end()
