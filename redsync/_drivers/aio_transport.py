"""The transport of a client for asyncio: one connection per node, for all its tasks.

Everything happens in the loop's thread. A task that waits for a round sleeps on a future. Where the system has epoll,
the loop watches one descriptor for the sockets of all nodes. So one callback reads what they sent, hands it out as in a
client for threads (see `serving`), and then resumes the tasks whose rounds are decided, without another turn of the
loop. Links that the loop reads itself give the dispatcher what it received.

While several rounds are in flight, everything that their tasks send in one turn of the loop goes out in one write per
node.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from contextvars import Context
from functools import partial
from operator import call
from types import BuiltinFunctionType
from typing import Any, Final, TypeAlias, cast

from redsync._core.interruptions import is_interruption
from redsync._core.quorum import Tally
from redsync._drivers.aio_links import AioLink, Receiver
from redsync._drivers.alarms import Alarms
from redsync._drivers.links import Link
from redsync._drivers.nodes import Node
from redsync._drivers.pollers import make_poller
from redsync._drivers.requests import Request, Sleeper
from redsync._drivers.serving import Serving
from redsync._drivers.wakeups import Waits

__all__ = ["AioTransport"]


_call: Callable[..., object] = call

_Callback: TypeAlias = "Callable[[asyncio.Future[None]], object]"
_Step: TypeAlias = "tuple[asyncio.Future[None], _Callback, Context]"
"""A future, and the step of the task that waits for it, with its context."""


class _Gate(partial[None]):
    """Puts the future that a task sleeps on among the `released`.

    All in C: no interruption can come between this and the line before, see `Sleeper.wake`.
    """

    __slots__ = ()
    release = partial.__call__


class _Lead:
    """The lead of a loop, which always reads for all: no task takes it over."""

    leading = followers = True


_LOOP: Final = Sleeper()
"""The leader of an event loop."""
_LOOP.leads = True


class AioTransport(Serving):
    """One connection per node.

    Attributes:
        closed: True once sleeps must end; only a sleeper that `lasts`, as each round does, sleeps on.
        released: The futures of the tasks that may run on, once no code of the transport is under way.
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
        self._poller: Final = make_poller()
        self._waker = None
        self._leadership = _Lead()
        super().__init__(
            nodes,
            clock,
            node_timeout,
            mutex=cast("threading.Lock", threading.RLock()),  # a finalizer may come in between
            poller=self._poller,
            awaken=self._awaken,
            receive_at_once=self._receive,
            on_broken=on_broken,
            on_change=on_change,
        )
        self._loop: Final = loop
        self._alarms: Final = Alarms(loop, clock, self._awaken)
        self._asleep: Final = self._alarms.asleep
        self._receiver: Final = Receiver(self._hear, self._table.discard, clock)
        self.closed = False
        self._polls = False
        self._rounds = 0
        self._latest: Sleeper | None = None
        self.released: Final[deque[asyncio.Future[None]]] = deque()
        self._release: Final = self.released.append
        self._step: _Step | None = None
        self._flushing_soon = self._resuming_soon = False

    # Sending.

    def send(self, request: Request) -> None:
        """Send a request to all nodes, in the order of the calls; never blocks."""
        if not self._rounds:
            self._outbox.send_alone(request)
            return
        self._outbox.items.append(request)
        if not self._flushing_soon:
            # Other rounds are in flight, and their tasks are likely to resume in this turn of the loop too.
            self._flushing_soon = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing_soon = False
        if self._outbox.items:
            self._outbox.flush()

    # Waiting.

    async def wait(self, sleeper: Sleeper, deadline: float) -> None:
        """Return when the sleeper is done, at the deadline, or when the transport closes."""
        while not sleeper.done and (sleeper.lasts or not self.closed) and self._clock() < deadline:
            future = self.lie_down(sleeper, deadline)
            try:
                await future
            finally:
                self.get_up(sleeper)

    def lie_down(self, sleeper: Sleeper, deadline: float) -> asyncio.Future[None]:
        """Return a future that ends when the sleeper is done, at the deadline, or before that; then call `get_up`."""
        future = self._loop.create_future()
        sleeper.gate = _Gate(self._release, future)
        if deadline < self._alarms.next:
            self._alarms.arm(deadline)
        self._asleep[sleeper] = deadline
        if sleeper.lasts:
            self._rounds += 1
            self._latest = sleeper
        return future

    def get_up(self, sleeper: Sleeper) -> None:
        """Forget a sleep."""
        self._rounds -= sleeper.lasts
        sleeper.gate = None
        alarm = self._asleep.pop(sleeper)
        if alarm.__class__ is list:
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
        if self._torn:
            self._settle_read(self._clock())
        # An interruption may have come before the loop's callbacks could do that.
        self._flushing_soon = self._resuming_soon = False
        self._alarms.catch_up()
        for sleeper in [each for each in self._asleep if each.done]:
            self._awaken(sleeper)
        if self.released:
            self._resume_soon()
        self._send_due()
        if not self._is_owed_replies():
            # No node is suspect, but two interruptions may have left a link that is broken.
            self._look_for_suspects()
            return False
        self._look_for_suspects(await self._let_loop_read())
        return self._is_owed_replies()

    def _read(self) -> None:
        """Read ready links, write their backlog, hand out all replies, and let tasks run on; called by the loop."""
        try:
            ready, now = self._poller.poll(0), self._clock()
            if self._torn:
                self._settle_read(now)
            request = self._latest
            if self._rounds == 1 and request.__class__ is Request and not request.done:
                request.leads = True
                try:
                    self._serve_alone(ready, now, request)
                finally:
                    # Even after an interruption, before or behind the verdict: else the task would sleep until
                    # its deadline.
                    if request.done or (request.tally is not None and request.tally.conclude()):
                        request.done = True
                        request.wake()
            else:
                self._serve(ready, now, _LOOP)
        finally:
            if self.released:
                self._resume()

    def _hear(self, link: Link, now: float, data: Any) -> None:
        """Hand out what the loop has read from a link."""
        try:
            self._take_in(link, now, data)
        finally:
            if self.released:
                self._resume_soon()

    # Waking.

    def _awaken(self, sleeper: Sleeper) -> None:
        sleeper.wake()
        if self.released:
            self._resume_soon()

    def _resume_soon(self) -> None:
        if not (self._resuming_soon or self._loop.is_closed()):
            self._resuming_soon = True
            self._loop.call_soon(self._resume)

    def _resume(self) -> None:
        """Let the tasks run on that were woken, now instead of in the next turn; what they send goes out together.

        An interruption must not leave a task asleep. So `_step` records the task whose future is about to end, until
        its step begins: Python checks for signals after each call, but not between the lines that remove the record.
        """
        released, self._flushing_soon = self.released, True
        self._resuming_soon = False
        step: Any
        context: Any
        try:
            if self._step is not None:
                self._recover()
            while released:
                future = released[0]
                try:
                    ((step, context),) = future._callbacks
                except (AttributeError, TypeError, ValueError):
                    step = context = None
                if step.__class__ is not BuiltinFunctionType:
                    # It ended meanwhile, or not just one task waits for it. Or that task is written in Python and may
                    # run its loop once more inside its step (`nest_asyncio`): that loop could not read, in a context
                    # that the outer call has not left.
                    if not future.done():
                        with suppress(asyncio.InvalidStateError):  # see below
                            future.set_result(None)
                    del released[0]
                    continue
                self._step = future, step, context
                try:
                    # One call in C: else a cancellation after an interruption could find a future without its task.
                    deque(map(_call, (future.remove_done_callback, future.set_result), (step, None)), 0)
                except asyncio.InvalidStateError:
                    # A signal's handler has just cancelled the task, as that of `asyncio.run` does.
                    self._step = None
                    del released[0]
                    continue
                self._step = None
                del released[0]
                try:
                    context.run(step, future)
                except RuntimeError as error:
                    self._postpone(error, future, step, context)
        finally:
            self._flush()
            if released:
                self._resume_soon()

    def _recover(self) -> None:
        """Take the recorded step if its future has ended by our call; else `_resume` begins again with that future."""
        assert self._step is not None, "it was recorded"
        future, step, context = self._step
        ended = future.done() and not future.cancelled()
        self._step = None
        if ended:
            del self.released[0]
            try:
                context.run(step, future)
            except RuntimeError as error:
                self._postpone(error, future, step, context)

    def _postpone(self, error: RuntimeError, future: asyncio.Future[None], step: _Callback, context: Context) -> None:
        """Let the loop run a step that could not begin, because the loop runs inside the step of another task."""
        if is_interruption(error):
            # The step has begun, and must not run twice.
            raise error
        self._loop.call_soon(step, future, context=context)

    # Links.

    def install(self, link: AioLink) -> None:
        """Put a new link into use. Commands owed to its node go out before any new claim."""
        self._table.install(link)
        if link.fileno >= 0 and not self._polls:
            self._polls = True
            self._loop.add_reader(self._poller.fileno(), self._read)
        link.use(self._receiver)

    # The end.

    def close(self) -> None:
        """End all sleeps, except those of sleepers that `lasts`."""
        self.closed = True
        for sleeper in list(self._asleep):
            self._awaken(sleeper)

    def forget(self) -> None:
        """Close a forked child's copies of the parent's sockets."""
        for link in self.links:
            if link is not None:
                link.forget()
        self._poller.close()

    def dispose(self) -> None:
        """End all connections; only after all callers have left."""
        self._alarms.clear()
        self._table.end()
        if self._polls:
            self._polls = False
            self._loop.remove_reader(self._poller.fileno())
        self._poller.close()
