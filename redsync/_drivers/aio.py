"""The driver for asyncio: runs protocols in their callers' tasks.

* **Effects** are performed in the calling task, see `aio_driver`. Everything happens in the thread of one event loop.
* **Owners are tasks**, see `tasks`. If a task ends while it holds, the client notices in the next turn of the loop.
* **Cancellation** is thrown into the protocol, whose clean-up effects are performed at once: they wait for nothing.
* **One more task** per client does the work that no caller waits for, see `aio_maintenance`. No thread is started.
* **One loop**: the client and its connections belong to the loop that first used it.
* **A process has its own life of a client** (`AioLife`): identity, holds, loop, connections. Every use looks up the
  life of the process in which it runs. So the child of a fork finds none and begins one: it holds nothing, never
  writes to its parent's connections, and may use the client in its own loop.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import threading
import weakref
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

from redsync._core.effects import Effect, Reply, Steps
from redsync._core.events import Event
from redsync._core.observing import noting_of
from redsync._core.ownership import Owner
from redsync._core.runner import Session
from redsync._core.timing import Timing
from redsync._drivers.aio_driver import AioCall, AioDriver
from redsync._drivers.aio_link_sets import AioLinkSet
from redsync._drivers.aio_maintenance import AioMaintenance
from redsync._drivers.link_sets import Shared
from redsync._drivers.nodes import Node, NodeStatus
from redsync._drivers.pending_releases import PendingReleases
from redsync._drivers.process import Surroundings, new_session
from redsync._drivers.requests import Sleeper
from redsync._drivers.tasks import TaskOwners, TaskScope
from redsync._drivers.wakeups import Wakeups
from redsync.exceptions import ClientClosedError, ConfigurationError, LeaseLostError, RedsyncError

__all__ = ["AioLife", "AioRunner"]

T = TypeVar("T")

log = logging.getLogger("redsync")

_serials = itertools.count(1)

_OTHER_LOOP = "this client belongs to another event loop, the one that first used it: make one AsyncClient per loop"

_CLOSE_TIMEOUT = 2.0
"""Seconds that `close` waits for other tasks to end their calls."""


class AioLife:
    """A client in one process.

    Attributes:
        client_id: The UUID under which this process's holds are kept.
        session: The state that the client's synchronizers share.
        owners: The owners of tasks.
        wakeups: The signals that end sleeps.
        loop: The loop that first used the client; None before that.
        maintenance: Keeps it alive; None without a loop.
        ready: True once the first connections are made, or enough time has passed.
        active: The number of callers' protocols that run.
        stepping: True while a protocol's own code runs.
        idle: Ends when none is left; None unless the client is closing.
        closing: The task that closes it; None before that.
        outlived: True if it was closed only because its loop ended.
    """

    def __init__(self, runner: AioRunner) -> None:
        self._process: Final = os.getpid()
        self._runner: Final = runner
        surroundings, nodes, ears = runner.surroundings, runner.nodes, runner.notifier.ears
        self.client_id: Final = surroundings.new_id()
        # One thread uses all this; reentrant, because a finalizer may come in between.
        guard = threading.RLock()
        self.wakeups: Final = Wakeups(guard, runner.clock, Sleeper.wake)
        self._shared: Final = Shared(
            nodes,
            runner.clock,
            runner.timing.node_timeout,
            PendingReleases(len(nodes), guard),
            self.wakeups,
            itertools.count(1).__next__,
            noting_of(ears),
            self._wake,
            lambda _: self._wake(),
        )
        self.session: Final = new_session(
            surroundings, self.client_id, homes=runner.homes, timing=runner.timing, ears=ears, alarm=self.alarm
        )
        self.owners: Final = TaskOwners(runner.new_owner, self.session.holds.orphan)
        self.loop: asyncio.AbstractEventLoop | None = None
        self.maintenance: AioMaintenance | None = None
        self._opening: asyncio.Task[None] | None = None
        self.closing: asyncio.Task[None] | None = None
        self.ready = self.stepping = self._finishing = self.outlived = False
        self.active = 0
        self.idle: asyncio.Future[None] | None = None
        self._left: Final[set[asyncio.Task[None]]] = set()

    def is_current(self) -> bool:
        """Return False in the child of a fork."""
        return self._process == os.getpid()

    @property
    def links(self) -> AioLinkSet:
        """The client's set of links."""
        assert self.maintenance is not None, "what runs has a loop"
        return self.maintenance.own

    def _wake(self) -> None:
        if self.maintenance is not None:
            self.maintenance.wake()

    def alarm(self) -> None:
        """Make the watchdog look; callable in any thread, because a finalizer may run in any."""
        maintenance, loop = self.maintenance, self.loop
        if maintenance is None or loop is None or not self.is_current():
            return
        if running_loop() is loop:
            maintenance.alarm()
        else:
            with suppress(RuntimeError):  # The loop is closed.
                loop.call_soon_threadsafe(maintenance.alarm)

    # The beginning.

    def require_loop(self) -> asyncio.AbstractEventLoop:
        """Bind the client to the running loop, unless that was done before.

        Raises:
            ClientClosedError: The client was closed.
            ConfigurationError: The client belongs to another loop.
        """
        loop = asyncio.get_running_loop()
        if self.outlived and self.loop is not loop:
            # The application has not closed the client, so the error must not say so.
            raise ConfigurationError(_OTHER_LOOP)
        runner = self._runner
        runner.require_open()
        if self.loop is None:
            self.loop = loop
            self.maintenance = runner.make_maintenance(
                shared=self._shared,
                client_id=self.client_id,
                random=runner.surroundings.random,
                timing=runner.timing,
                processes=self.session.processes,
                tell=runner.notifier.announce,
                loop=loop,
            )
        elif self.loop is not loop:
            raise ConfigurationError(_OTHER_LOOP)
        return loop

    def begin_opening(self) -> asyncio.Task[None]:
        """Begin to connect, unless that was done before; raises as `require_loop`."""
        loop = self.require_loop()
        if self._opening is None:
            self._opening = loop.create_task(self._open(), name="redsync-opening")
            # All waiting tasks may be cancelled before it fails; then no other code retrieves its error.
            self._opening.add_done_callback(_retrieve)
        return self._opening

    async def await_opening(self, timeout: float) -> None:
        """Wait for the first connections, but no longer than a round would; raise their error, if any."""
        assert self._opening is not None, "what runs has begun to open"
        assert self.maintenance is not None, "what runs has a loop"
        await asyncio.wait([self._opening], timeout=timeout)
        if self._opening.done():
            self._opening.result()
        else:
            self.maintenance.hurry()

    async def _open(self) -> None:
        maintenance, runner = self.maintenance, self._runner
        assert maintenance is not None, "the loop is ours"
        try:
            await maintenance.start(self._watch, self._close_with_loop)
            self.ready = True
        except BaseException as error:
            runner.closed = True
            self.outlived = isinstance(error, asyncio.CancelledError)
            await maintenance.stop()
            raise

    async def _watch(self) -> None:
        runner = self._runner
        await runner.drive(runner.watchdog(self.session, runner.clock()), AioCall(self), runner.perform_by_maintenance)

    def leave(self, action: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Let the loop run an action that releases something; callable in a finalizer, in any thread."""
        if self.loop is not None and self.is_current():
            with suppress(RuntimeError):  # The loop is closed.
                self.loop.call_soon_threadsafe(self._begin_left, action)

    def _begin_left(self, action: Callable[[], Coroutine[Any, Any, None]]) -> None:
        assert self.loop is not None, "it runs this"
        task = self.loop.create_task(_give_back(action), name="redsync-release")
        self._left.add(task)
        task.add_done_callback(self._left.discard)

    # The end.

    async def close(self) -> None:
        """See `AioRunner.close`."""
        if self.loop is None or self.loop.is_closed():
            # There are no connections: none were made, or they ended with their loop.
            self._runner.closed = True
            return
        if self.closing is None and not self._runner.closed:
            self.require_loop()
            self.begin_closing()
        if self.closing is not None and not self.closing.done():
            if asyncio.get_running_loop() is not self.loop:
                raise ConfigurationError(_OTHER_LOOP)
            await asyncio.shield(self.closing)

    async def _close_with_loop(self) -> None:
        """Close the client because its loop ends, which cancels all its tasks."""
        self.outlived = not self._runner.closed
        self.begin_closing()
        while self.closing is not None and not self.closing.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([self.closing])
        if not self._finishing:
            # The closing task was cancelled before its first step.
            await self._finish()

    def begin_closing(self) -> None:
        """Let the loop close the client, unless it is closed."""
        if not self._runner.closed:
            assert self.loop is not None, "there is something to close"
            self._runner.closed = True
            self.closing = self.loop.create_task(self._finish(), name="redsync-closing")

    async def _finish(self) -> None:
        self._finishing = True
        runner, maintenance = self._runner, self.maintenance
        assert maintenance is not None, "there is something to close"
        try:
            if self._opening is not None:
                await asyncio.wait([self._opening])
            maintenance.own.end_sleeps()
            if self.active:
                assert self.loop is not None, "there is something to close"
                self.idle = self.loop.create_future()
                await asyncio.wait([self.idle], timeout=_CLOSE_TIMEOUT)
        finally:
            # Even if the loop is ending and cancels this task like all others.
            try:
                await runner.drive(runner.farewell(self.session), AioCall(self), runner.perform)
            finally:
                self.owners.close()
                await maintenance.stop()

    def forget(self, *, close: bool) -> None:
        """In the child of a fork: hold nothing, and drop the copies of the parent's sockets, closed or left open."""
        self.session.holds.clear()
        if self.maintenance is not None:
            maintenance, self.maintenance = self.maintenance, None
            maintenance.own.forget(close=close)
            # Kept alive: when collected, asyncio's transports would write a farewell to the parent's sockets.
            _inherited.append(maintenance)


class AioRunner(AioDriver):
    """Runs the protocols of one client in the calling tasks.

    Attributes:
        nodes: The configured nodes.
        homes: Where each of them keeps its keys.
        closed: True once the client is closed: nothing new may begin.
    """

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
        self.timing: Final = timing
        self.surroundings: Final = surroundings
        self.watchdog: Final = watchdog
        self.farewell: Final = farewell
        self.closed = False
        self.client: Callable[[], object] = lambda: self
        self._lives: Final[dict[int, AioLife]] = {}
        _runners.add(self)

    @property
    def life(self) -> AioLife:
        """The client in this process."""
        life = self._lives.get(os.getpid())
        return life if life is not None else self._new_life()

    def _new_life(self) -> AioLife:
        # One step: of two threads that begin at once, both get the same.
        life = self._lives.setdefault(os.getpid(), AioLife(self))
        for process, former in list(self._lives.items()):
            if former is not life and self._lives.pop(process, None) is not None:
                former.forget(close=False)
                for node in self.nodes:
                    node.forget()
        return life

    def make_maintenance(self, **settings: Any) -> AioMaintenance:
        """Return the maintenance of this client."""
        return AioMaintenance(**settings)

    # The methods that facades use.

    @property
    def client_id(self) -> str:
        """The UUID under which this process's holds are kept; a forked child has another."""
        return self.life.client_id

    @property
    def session(self) -> Session:
        """The state that the client's synchronizers share."""
        return self.life.session

    @property
    def usable(self) -> bool:
        """True while another user may share this client."""
        return not self.closed and self.life.loop in {None, running_loop()}

    def now(self) -> float:
        """Return the current instant in seconds; in the child of a fork, first end what the parent held."""
        if os.getpid() not in self._lives:
            self._new_life()
        return self.clock()

    async def connect(self) -> None:
        """Bind the client to the running loop and wait briefly for the first connections, unless that was done before.

        Raises:
            ClientClosedError: The client was closed.
            ConfigurationError: Two nodes are the same server, or the client belongs to another loop.
        """
        # If a task that waits here is cancelled, the others wait on.
        await asyncio.shield(self.life.begin_opening())
        self.require_open()

    def owner(self) -> Owner:
        """Return the running task's owner."""
        return self.life.owners()

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

    def begin(self, action: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run an action that releases something, up to its first wait, like one that is cancelled then.

        In another thread, or in the middle of a step (the garbage collector drops coroutines anywhere), leave it to the
        client's loop.
        """
        loop, life = running_loop(), self.life
        if loop is None or loop is not life.loop or life.stepping:
            self.leave_to_loop(action)
            return
        begun = action()
        try:
            begun.send(None)
        except StopIteration:
            pass
        finally:
            begun.close()

    def leave_to_loop(self, action: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Let the client's loop run an action that releases something; callable in a finalizer, in any thread."""
        self.life.leave(action)

    def run(self, steps: Steps[T]) -> Coroutine[Any, Any, T]:
        """Return a coroutine that performs the protocol's effects until it returns; await it at once."""
        life = self.life
        if not life.ready or self.closed or life.loop is not asyncio.get_running_loop():
            life.begin_opening()
        return self.drive(steps, AioCall(life, awaited=True), self.perform)

    def run_at_once(self, steps: Steps[T]) -> T:
        """Run a protocol that waits for nothing; in another thread, leave its effects to the loop."""
        self.require_open()
        life = self.life
        if life.loop is None or running_loop() is life.loop:
            return _at_once(self.drive(steps, AioCall(life, awaited=True), self.perform))
        return _at_once(self.drive(steps, AioCall(life), self._leave_to_loop))

    def _leave_to_loop(self, effect: Effect, call: AioCall) -> Coroutine[Any, Any, Reply] | None:
        """Let the loop perform an effect that needs no reply."""
        assert call.life.loop is not None, "it is another one"
        with suppress(RuntimeError):  # The loop is closed.
            call.life.loop.call_soon_threadsafe(self.perform, effect, call)
        return None

    def close_copies(self) -> None:
        """In the child of a fork, right after it: close the copies of the parent's sockets."""
        for process, life in list(self._lives.items()):
            if process != os.getpid():
                life.forget(close=True)

    def servers(self) -> frozenset[str]:
        """Return the connected servers and databases, by their own identities."""
        return frozenset(server for node in self.nodes if (server := node.server) is not None)

    def statuses(self) -> list[NodeStatus]:
        """Return each node's state."""
        maintenance = self.life.maintenance
        if maintenance is not None:
            return maintenance.statuses()
        return [node.status(self.clock(), suspect=False, guard=self.timing.restart_guard) for node in self.nodes]

    def _contain(self, error: BaseException) -> bool:
        """Keep a callback's error from ending the maintenance; `sys.exit()` still ends the loop, as in any callback."""
        life = self.life
        if life.maintenance is None or life.loop is None or not life.maintenance.is_current():
            return False
        if isinstance(error, asyncio.CancelledError):
            log.error("a callback raised %r in the client's own task, which continues", error)
        else:
            life.loop.call_soon(_raise, error)
        return True

    # The end.

    async def close(self) -> None:
        """Wake waiters, run the farewell protocol, stop the maintenance, end the connections; idempotent.

        A cancelled close still runs to its end.

        Raises:
            ConfigurationError: The client belongs to another loop.
        """
        await self.life.close()

    def abandon(self) -> None:
        """Let the loop close the client; safe in a finalizer, which may interrupt anything, in any thread."""
        life = self._lives.get(os.getpid())
        if life is None or life.loop is None:
            self.closed = True
            return
        with suppress(RuntimeError):  # The loop is closed.
            life.loop.call_soon_threadsafe(life.begin_closing)


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


def _raise(error: BaseException) -> None:
    raise error


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the running loop; None if there is none."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError as error:
        if type(error) is not RuntimeError:
            raise  # a signal handler's
        return None


_runners: Final[weakref.WeakSet[AioRunner]] = weakref.WeakSet()
_inherited: Final[list[AioMaintenance]] = []


def _after_fork_in_child() -> None:
    # Nothing depends on it: a child that never gets here only keeps the copies open.
    for runner in list(_runners):
        runner.close_copies()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
