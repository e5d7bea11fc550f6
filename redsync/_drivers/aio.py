"""The driver for asyncio: runs protocols in their callers' tasks.

* **Effects** are performed in the calling task, see `aio_driver`. Everything happens in the thread of one event loop.
* **Owners are tasks**, see `tasks`. If a task ends while it holds, the client notices in the next turn of the loop.
* **Cancellation** is thrown into the protocol, whose clean-up effects are performed at once: they wait for nothing.
* **One more task** per client does the work that no caller waits for, see `aio_maintenance`. No thread is started.
* **One loop**: the client and its connections belong to the loop that first used it.
* **fork**: the child has another identity, holds nothing, and may use the client in its own loop.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import weakref
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, ClassVar, Final, TypeVar

from redsync._core.effects import Effect, Reply, Steps
from redsync._core.events import Event
from redsync._core.holds import HoldTable
from redsync._core.keys import client_key
from redsync._core.observing import journal_of, noting_of
from redsync._core.ownership import Owner
from redsync._core.presence import digests_of
from redsync._core.runner import Session
from redsync._core.timing import Timing
from redsync._drivers.aio_driver import AioDriver
from redsync._drivers.aio_maintenance import AioMaintenance
from redsync._drivers.nodes import Node, NodeStatus
from redsync._drivers.process import Surroundings
from redsync._drivers.tasks import TaskOwners, TaskScope
from redsync.exceptions import ClientClosedError, ConfigurationError, LeaseLostError, RedsyncError

__all__ = ["AioRunner"]

T = TypeVar("T")

log = logging.getLogger("redsync")

_serials = itertools.count(1)

_OTHER_LOOP = "this client belongs to another event loop, the one that first used it: make one AsyncClient per loop"

_CLOSE_TIMEOUT = 2.0
"""Seconds that `close` waits for other tasks to end their calls."""


class AioRunner(AioDriver):
    """Runs the protocols of one client in the calling tasks.

    Attributes:
        session: The state that the client's synchronizers share.
        client_id: The UUID under which this process's holds are kept; a forked child has another.
        nodes: The configured nodes.
        homes: Where each of them keeps its keys.
        closed: True once the client is closed: nothing new may begin.
        now: Returns the current instant in seconds; its clock continues while the machine is suspended.
    """

    _MAINTENANCE: ClassVar = AioMaintenance

    def __init__(
        self,
        *,
        nodes: Sequence[Node],
        timing: Timing,
        listeners: Sequence[Callable[[Event], object]],
        watchdog: Callable[[Session, float], Steps[None]],
        farewell: Callable[[Session], Steps[None]],
        surroundings: Surroundings,
    ) -> None:
        """Make a runner, not yet bound to a loop; the arguments are those of `ThreadRunner`."""
        super().__init__([node.address for node in nodes], surroundings.clock, listeners)
        self.nodes: Final = tuple(nodes)
        self.homes: Final = tuple(node.home for node in nodes)
        self._timing: Final = timing
        self._surroundings: Final = surroundings
        self._watchdog: Final = watchdog
        self._farewell: Final = farewell
        self.closed = False
        self.client: Callable[[], object] = lambda: self
        self._begin()
        _runners.add(self)

    def _begin(self) -> None:
        """Begin with a new identity and without a loop: at creation, and in the child of a fork."""
        self.client_id = self._surroundings.new_id()
        holds = HoldTable(self._alarm)
        client = self._surroundings.describe()._replace(nodes=digests_of(self.homes))
        self.session = Session(
            len(self.nodes),
            self._timing,
            holds,
            self._surroundings.random,
            record_key=client_key(self.client_id),
            record=client.pack(),
            observed=bool(self._notifier.ears),
            journal=journal_of(self._notifier.ears),
            client=client,
            epoch=client.since - self.now(),
        )
        self._owners = TaskOwners(self.new_owner, holds.orphan)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._maintenance: AioMaintenance | None = None
        self._opening: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._ready = self._finishing = self._outlived = False
        self._active = 0
        self._left: set[asyncio.Task[None]] = set()
        self._idle: asyncio.Future[None] | None = None

    # The loop, and its tasks.

    @property
    def usable(self) -> bool:
        """True while another user may share this client."""
        return not self.closed and self._loop in {None, _running_loop()}

    async def connect(self) -> None:
        """Bind the client to the running loop and wait briefly for the first connections, unless that was done before.

        Raises:
            ClientClosedError: The client was closed.
            ConfigurationError: Two nodes are the same server, or the client belongs to another loop.
        """
        # If a task that waits here is cancelled, the others wait on.
        await asyncio.shield(self._begin_opening())
        self.require_open()

    def _begin_opening(self) -> asyncio.Task[None]:
        loop = self._require_loop()
        if self._opening is None:
            self._opening = loop.create_task(self._open(), name="redsync-opening")
            # All waiting tasks may be cancelled before it fails; then no other code retrieves its error.
            self._opening.add_done_callback(_retrieve)
        return self._opening

    async def _await_opening(self, timeout: float) -> None:
        """Wait for the first connections, but no longer than a round would; raise their error, if any."""
        assert self._opening is not None, "what runs has begun to open"
        assert self._maintenance is not None, "what runs has a loop"
        await asyncio.wait([self._opening], timeout=timeout)
        if self._opening.done():
            self._opening.result()
        else:
            self._maintenance.hurry()

    def _require_loop(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.get_running_loop()
        if self._outlived and self._loop is not loop:
            # The application has not closed the client, so the error must not say so.
            raise ConfigurationError(_OTHER_LOOP)
        self.require_open()
        if self._loop is None:
            self._loop = loop
            self._maintenance = self._MAINTENANCE(
                nodes=self.nodes,
                client_id=self.client_id,
                clock=self.now,
                random=self._surroundings.random,
                node_timeout=self._timing.node_timeout,
                restart_guard=self._timing.restart_guard,
                processes=self.session.processes,
                loop=loop,
                tell=self._notifier.announce,
            )
            self._maintenance.transport.noting = noting_of(self._notifier.ears)
        elif self._loop is not loop:
            raise ConfigurationError(_OTHER_LOOP)
        return loop

    async def _open(self) -> None:
        maintenance = self._maintenance
        assert maintenance is not None, "the loop is ours"
        try:
            await maintenance.start(self._watch, self._close_with_loop)
            self._ready = True
        except BaseException as error:
            self.closed = True
            self._outlived = isinstance(error, asyncio.CancelledError)
            await maintenance.stop()
            raise

    async def _watch(self) -> None:
        await self._drive(self._watchdog(self.session, self.now()), self._perform_watchdog)

    def _alarm(self) -> None:
        """Make the watchdog look; callable in any thread, because a finalizer may run in any."""
        maintenance, loop = self._maintenance, self._loop
        if maintenance is None or loop is None:
            return
        if _running_loop() is loop:
            maintenance.alarm()
        else:
            with suppress(RuntimeError):  # The loop is closed.
                loop.call_soon_threadsafe(maintenance.alarm)

    # The methods that facades use.

    def owner(self) -> Owner:
        """Return the running task's owner."""
        return self._owners()

    def new_owner(self) -> Owner:
        """Return a new, unique owner."""
        return Owner(self.client_id, next(_serials))

    def scope(self) -> TaskScope:
        """Open a scope around everything that the running task does from now on."""
        return TaskScope()

    def require_open(self) -> None:
        """Raise `ClientClosedError` if the client was closed."""
        if self.closed:
            raise ClientClosedError

    def in_task(self) -> bool:
        """Return True in a task of the client's loop: only such a task can await a node's answer."""
        loop = _running_loop()
        return loop is not None and loop is self._loop and asyncio.current_task() is not None

    def leave_to_loop(self, action: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Let the client's loop run an action that releases something; callable in a finalizer, in any thread."""
        if self._loop is not None:
            with suppress(RuntimeError):  # The loop is closed.
                self._loop.call_soon_threadsafe(self._begin_left, action)

    def _begin_left(self, action: Callable[[], Coroutine[Any, Any, None]]) -> None:
        assert self._loop is not None, "it runs this"
        task = self._loop.create_task(_give_back(action), name="redsync-release")
        self._left.add(task)
        task.add_done_callback(self._left.discard)

    def run(self, steps: Steps[T]) -> Coroutine[Any, Any, T]:
        """Return a coroutine that performs the protocol's effects until it returns; await it at once."""
        if not self._ready or self.closed or self._loop is not asyncio.get_running_loop():
            self._begin_opening()
        return self._drive(steps)

    def run_at_once(self, steps: Steps[T]) -> T:
        """Run a protocol that waits for nothing; in another thread, leave its effects to the loop."""
        self.require_open()
        at_home = self._loop is None or _running_loop() is self._loop
        return _at_once(self._drive(steps, None if at_home else self._leave_to_loop))

    def servers(self) -> frozenset[str]:
        """Return the connected servers and databases, by their own identities."""
        return frozenset(server for node in self.nodes if (server := node.server) is not None)

    def statuses(self) -> list[NodeStatus]:
        """Return each node's state."""
        if self._maintenance is not None:
            return self._maintenance.statuses()
        return [node.status(self.now(), suspect=False, guard=self._timing.restart_guard) for node in self.nodes]

    async def _leave_to_loop(self, effect: Effect) -> Reply:
        """Let the loop perform an effect that needs no reply."""
        assert self._loop is not None, "it is another one"
        with suppress(RuntimeError):  # The loop is closed.
            self._loop.call_soon_threadsafe(lambda: _at_once(self._perform(set(), effect)))
        return None

    # The end.

    async def close(self) -> None:
        """Wake waiters, run the farewell protocol, stop the maintenance, end the connections; idempotent.

        A cancelled close still runs to its end.

        Raises:
            ConfigurationError: The client belongs to another loop.
        """
        if self._loop is None or self._loop.is_closed():
            # There are no connections: none were made, or they ended with their loop.
            self.closed = True
            return
        if self._closing is None and not self.closed:
            self._require_loop()
            self._begin_closing()
        if self._closing is not None and not self._closing.done():
            if asyncio.get_running_loop() is not self._loop:
                raise ConfigurationError(_OTHER_LOOP)
            await asyncio.shield(self._closing)

    async def _close_with_loop(self) -> None:
        """Close the client because its loop ends, which cancels all its tasks."""
        self._outlived = not self.closed
        self._begin_closing()
        while self._closing is not None and not self._closing.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([self._closing])
        if not self._finishing:
            # The closing task was cancelled before its first step.
            await self._finish()

    def abandon(self) -> None:
        """Let the loop close the client; safe in a finalizer, which may interrupt anything, in any thread."""
        loop = self._loop
        if loop is None:
            self.closed = True
            return
        with suppress(RuntimeError):  # The loop is closed.
            loop.call_soon_threadsafe(self._begin_closing)

    def _begin_closing(self) -> None:
        if not self.closed:
            assert self._loop is not None, "there is something to close"
            self.closed = True
            self._closing = self._loop.create_task(self._finish(), name="redsync-closing")

    async def _finish(self) -> None:
        self._finishing = True
        maintenance = self._maintenance
        assert maintenance is not None, "there is something to close"
        try:
            if self._opening is not None:
                await asyncio.wait([self._opening])
            maintenance.transport.close()
            if self._active:
                assert self._loop is not None, "there is something to close"
                self._idle = self._loop.create_future()
                await asyncio.wait([self._idle], timeout=_CLOSE_TIMEOUT)
        finally:
            # Even if the loop is ending and cancels this task like all others.
            try:
                await self._drive(self._farewell(self.session))
            finally:
                await maintenance.stop()

    # fork.

    def restart_after_fork(self) -> None:
        """Start over in the child of a fork: a new identity, no holds, its own loop."""
        self.session.holds.clear()
        for node in self.nodes:
            node.forget()
        if self._maintenance is not None:
            self._maintenance.transport.forget()
            # Kept alive: when collected, asyncio's transports would write a farewell to the parent's sockets.
            _inherited.append(self._maintenance)
        if not self.closed:
            self._begin()


async def _give_back(action: Callable[[], Coroutine[Any, Any, None]]) -> None:
    try:
        await action()
    except LeaseLostError as error:
        log.warning("a dropped coroutine had lost its hold: %s", error)
    except RedsyncError:
        pass  # It was released before, or will be when the client closes.


def _retrieve(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()


def _at_once(coroutine: Coroutine[object, None, T]) -> T:
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        coroutine.close()
    raise AssertionError("a protocol that waits for nothing has waited")


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


_runners: weakref.WeakSet[AioRunner] = weakref.WeakSet()
_inherited: list[AioMaintenance] = []


def _after_fork_in_child() -> None:
    for runner in list(_runners):
        runner.restart_after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)
