"""The driver for asyncio: runs protocols in their callers' tasks.

* **Effects** are performed in the calling task. A protocol's own code awaits nothing, so it runs alone. Everything
  happens in the thread of one event loop.
* **Owners are tasks** (`TaskOwners`). If a task ends while it holds, the client notices in the next turn of the loop.
* **Cancellation** arises in the effect that is awaited, and is thrown into the protocol. Its clean-up effects are
  performed at once: they wait for nothing.
* **One more task** per client begins, maintains and closes it, see `AioLife`. No thread is started.
* **One loop**: the client and its connections belong to the loop that first used it.
* **A process has its own life of a client** (`AioLife`): the child of a fork may use the client in its own loop, see
  `any_runner`.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, TypeVar, assert_never

from redsync._core.effects import Broadcast, Effect, Notify, Reply, Signal, Steps, Tell, Wait, Wakeup
from redsync._core.holds import Owner
from redsync._core.quorum import Tally
from redsync._drivers.aio_link_sets import AioLinkSet
from redsync._drivers.aio_maintenance import AioMaintenance, reraise
from redsync._drivers.any_maintenance import Stopped
from redsync._drivers.any_runner import AnyLife, AnyRunner
from redsync._drivers.environment import forked
from redsync._drivers.nodes import Node
from redsync._drivers.notifier import quietly
from redsync._drivers.requests import Request
from redsync.exceptions import ClientClosedError, ConfigurationError, LeaseLostError, RedsyncError

__all__ = ["AioCall", "AioLife", "AioRunner", "TaskOwners", "TaskScope"]

T = TypeVar("T")

log = logging.getLogger("redsync")

_OTHER_LOOP = "this client belongs to another event loop, the one that first used it: make one AsyncClient per loop"

_CLOSE_TIMEOUT = 2.0
"""Seconds that `close` waits for other tasks to end their calls, besides those for nodes."""


class TaskOwners:
    """The owner of each task. When a task ends, its owner ends too, and `on_ended` is called.

    Everything happens in one thread, the loop's.
    """

    def __init__(self, new_owner: Callable[[], Owner], on_ended: Callable[[Owner], object]) -> None:
        self._new_owner: Final = new_owner
        self._on_ended: Final = on_ended
        self._owners: Final[dict[asyncio.Task[Any], Owner]] = {}

    def __call__(self) -> Owner:
        """Return the running task's owner.

        Raises:
            RuntimeError: No task is running.
        """
        task = asyncio.current_task()
        owner = self._owners.get(task)  # type: ignore[arg-type]  # None is not in there
        if owner is None:
            if task is None:
                raise RuntimeError("an async lock belongs to a task: call this in a coroutine, not in a callback")
            owner = self._owners[task] = self._new_owner()
            task.add_done_callback(self._end)
        return owner

    def _end(self, task: asyncio.Task[Any]) -> None:
        owner = self._owners.pop(task, None)
        if owner is not None:  # else the client was closed in the same turn of the loop
            self._on_ended(owner)

    def close(self) -> None:
        """Forget all owners: the client was closed."""
        while self._owners:
            task, _ = self._owners.popitem()
            task.remove_done_callback(self._end)


class TaskScope:
    """Cancels the body of an `async with`, and distinguishes that cancellation from others, as timeouts do."""

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None, "only an owner opens a scope, so it is a task"
        self._task: Final = task
        self._loop: Final = task.get_loop()
        self._before: Final = task.cancelling()
        self._handle: asyncio.Handle | None = None
        self._cancelled = False
        self._closed = False

    def is_here(self) -> bool:
        """Return whether the running task opened the scope."""
        return asyncio.current_task(self._loop) is self._task

    def cancel(self) -> None:
        """Cancel the task that opened the scope, at its next await, unless the scope was closed by then."""
        # Not at once: the running task may itself have noticed the loss, and may leave the scope before its next await.
        # A cancellation would then report the loss a second time, at an await outside the scope.
        if self._handle is None and not self._closed:
            self._handle = self._loop.call_soon(self._cancel)

    def _cancel(self) -> None:
        self._cancelled = self._task.cancel()

    def close(self, error: BaseException | None) -> bool:
        """End the scope, see `Scope.close`."""
        self._closed = True
        if self._handle is not None:
            self._handle.cancel()
        left = self._task.uncancel() if self._cancelled else self._task.cancelling()
        is_own = isinstance(error, GeneratorExit) or (self._cancelled and isinstance(error, asyncio.CancelledError))
        return is_own and left <= self._before


class AioCall:
    """One run of a protocol.

    Attributes:
        life: The client in this process.
        awaited: True for a caller's: a closing client waits for it. False for the client's own task.
        in_loop: False if it runs in another thread, and leaves its effects to the loop.
        stepping: Like that of `life`, in another thread.
        subscribed: The keys to whose wake-ups it subscribes.
    """

    __slots__ = ("awaited", "in_loop", "life", "stepping", "subscribed")

    def __init__(self, life: AioLife, *, awaited: bool = False, in_loop: bool = True) -> None:
        self.life = life
        self.awaited = awaited
        self.in_loop = in_loop
        self.stepping = False
        self.subscribed: set[bytes] = set()

    def end(self) -> None:
        """End a caller's run: its subscriptions, and the wait of a closing client if no other one runs."""
        life = self.life
        life.active -= 1
        for key in self.subscribed:
            life.wakeups.unsubscribe(key)
        if not life.active and life.idle is not None and not life.idle.done():
            life.idle.set_result(None)


class _Dropped(BaseException):
    """Replaces GeneratorExit in a protocol: `yield from` would not pass that on, but close the inner generator."""


class AioLife(AnyLife):
    """A client in one process.

    Its task makes the first connections, maintains the client, and closes it. A loop that ends cancels all its tasks.
    Then this one closes the client too, which releases its holds while that is still possible.

    Attributes:
        owners: The owners of tasks.
        loop: The loop that first used the client; None before that.
        links: The client's set of links, made with the first use.
        task: The client's task; None without a loop.
        begun: Set once the first connections are made, or enough time has passed, or the client has ended.
        ready: True from then on, until the client ends.
        failure: Why it could not begin; forgotten when the application closes it.
        active: The number of callers' protocols that run.
        idle: Ends when none is left; None unless the client is closing.
        stepping: True while a protocol's own code runs.
    """

    maintenance: AioMaintenance | None
    links: AioLinkSet

    def __init__(self, runner: AioRunner) -> None:
        super().__init__(runner)
        self.on_event = runner.notifier.announce
        self.owners: Final = TaskOwners(runner.new_owner, self.session.holds.orphan)
        self.loop: asyncio.AbstractEventLoop | None = None
        self.task: asyncio.Task[None] | None = None
        self.begun: Final = asyncio.Event()
        self.failure: Exception | None = None
        self.ready = self.stepping = False
        self.active = 0
        self.idle: asyncio.Future[None] | None = None
        self._left: Final[set[asyncio.Task[None]]] = set()

    def note_lag(self, node: Node) -> None:  # noqa: ARG002  (it asks over the same link)
        self.wake()

    def alarm(self) -> None:
        if self.maintenance is None:
            return
        if running_loop() is self.loop:
            self.maintenance.alarm()
        else:
            self.post(self.maintenance.alarm)

    def post(self, function: Callable[..., object], *args: Any) -> None:
        """Let the loop call a function, if it still can; callable in a finalizer, in any thread."""
        if self.loop is not None and self.process == os.getpid():
            with suppress(RuntimeError):  # The loop is closed.
                self.loop.call_soon_threadsafe(function, *args)

    def begin(self) -> None:
        """Bind the client to the running loop, and start its task, unless that was done before.

        Raises:
            ClientClosedError: The client was closed.
            ConfigurationError: The client belongs to another loop.
            Exception: Its first connections found an error that no later one can mend.
        """
        loop, runner = asyncio.get_running_loop(), self.runner
        if self.loop not in (None, loop):
            # First: if its loop has ended, the client is closed, but the application has not closed it.
            raise ConfigurationError(_OTHER_LOOP)
        if self.failure is not None:
            raise self.failure.with_traceback(None)  # else each call would lengthen its traceback
        runner.require_open()
        if self.task is None:
            self.loop = loop
            self.maintenance = runner.make_maintenance(self, loop)
            self.links = self.maintenance.own
            self.task = loop.create_task(self._main(self.maintenance), name="redsync-maintenance")
            self.task.add_done_callback(self._note_end)

    async def await_begun(self, timeout: float | None) -> None:
        """Wait for the first connections; if `timeout` is None, for as long as they may take.

        Raises:
            ClientClosedError: The client was closed meanwhile.
            Exception: Its first connections have found an error that no later one can mend.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self.begun.wait()
        if self.begun.is_set() and not self.ready:
            raise self.failure or ClientClosedError

    async def _main(self, maintenance: AioMaintenance) -> None:
        try:
            await maintenance.run(self._watch, self._note_ready)
        except (Stopped, asyncio.CancelledError):
            pass
        except Exception as error:
            self.failure = error
        await self._finish(maintenance)

    async def _watch(self) -> None:
        runner = self.runner
        await runner.drive(runner.watchdog(self.session, runner.clock()), AioCall(self))

    def _note_ready(self) -> None:
        self.ready = True
        self.begun.set()

    async def _finish(self, maintenance: AioMaintenance) -> None:
        """Release everything, and end; a cancellation meanwhile only ends the waits for callers and nodes."""
        runner = self.runner
        runner.closed, self.ready = True, False
        self.session.holds.closed = True
        self.begun.set()
        maintenance.own.end_sleeps()
        if self.active:
            self.idle = asyncio.get_running_loop().create_future()
            with suppress(asyncio.CancelledError):
                await asyncio.wait([self.idle], timeout=_CLOSE_TIMEOUT + runner.timing.node_timeout)
        try:
            await runner.drive(runner.shutdown(self.session, runner.clock()), AioCall(self))
        finally:
            self.owners.close()
            await maintenance.stop()

    def _note_end(self, _: asyncio.Task[None]) -> None:
        # Again, for a cancellation before its first step, and for an exception from outside.
        self.runner.closed = True
        self.begun.set()

    def begin_closing(self) -> None:
        """Let the client's task close it, unless it is closed."""
        if not self.runner.closed:
            assert self.maintenance is not None, "there is something to close"
            self.runner.closed = True
            self.maintenance.abandon()

    def begin_release(self, action: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run an action that releases something in a task; the loop calls it."""
        assert self.loop is not None, "it runs this"
        task = self.loop.create_task(_give_back(action), name="redsync-release")
        self._left.add(task)
        task.add_done_callback(self._left.discard)


class AioRunner(AnyRunner[AioLife]):
    """Runs the protocols of one client in the calling tasks; not bound to a loop before its first use."""

    def _make_life(self) -> AioLife:
        return AioLife(self)

    def make_maintenance(self, life: AioLife, loop: asyncio.AbstractEventLoop) -> AioMaintenance:
        """Return the maintenance of this client."""
        return AioMaintenance(life, loop)

    # The methods that facades use.

    @property
    def usable(self) -> bool:
        """True while another user may share this client."""
        return not self.closed and self.life.loop in {None, running_loop()}

    async def connect(self) -> None:
        """Bind the client to the running loop and wait briefly for the first connections, unless that was done before.

        Raises:
            ClientClosedError: The client was closed.
            ConfigurationError: Two nodes are the same server, or the client belongs to another loop.
        """
        self.life.begin()
        await self.life.await_begun(None)

    def owner(self) -> Owner:
        """Return the running task's owner."""
        return self.life.owners()

    def scope(self) -> TaskScope:
        """Open a scope around everything that the running task does from now on."""
        return TaskScope()

    def begin(self, action: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run an action that releases something, up to its first wait, like one that is cancelled then.

        In another thread, in a callback, or in the middle of a step (the garbage collector drops coroutines anywhere),
        leave it to the client's loop.
        """
        loop, life = running_loop(), self.life
        if loop is None or loop is not life.loop or life.stepping or asyncio.current_task() is None:
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
        life = self.life
        life.post(life.begin_release, action)

    def run(self, steps: Steps[T]) -> Coroutine[Any, Any, T]:
        """Return a coroutine that performs the protocol's effects until it returns; await it at once."""
        life = self.life
        if not life.ready or self.closed or life.loop is not asyncio.get_running_loop():
            life.begin()
        return self.drive(steps, AioCall(life, awaited=True))

    def run_at_once(self, steps: Steps[T]) -> T:
        """Run a protocol that waits for nothing; in another thread, leave its effects to the loop."""
        self.require_open()
        life = self.life
        if life.loop is None or running_loop() is life.loop:
            return _at_once(self.drive(steps, AioCall(life, awaited=True)))
        return _at_once(self.drive(steps, AioCall(life, in_loop=False)))

    def _contain(self, error: BaseException) -> bool:
        # `sys.exit()` still ends the loop, as in any callback.
        life = self.life
        if life.loop is None or running_loop() is not life.loop or asyncio.current_task() is not life.task:
            return False
        if isinstance(error, asyncio.CancelledError):
            quietly(log.error, "a callback raised %r in the client's own task, which continues", error)
        else:
            life.loop.call_soon(reraise, error)
        return True

    # Driving.

    async def drive(self, steps: Steps[T], call: AioCall) -> T:
        """Perform the protocol's effects until it returns; return its result or raise its error.

        An error of an effect, above all a cancellation, is thrown into the protocol. Then this performs all of the
        protocol's clean-up effects. These wait for nothing, so a second cancellation finds nothing to interrupt. For
        the same reason even a dropped coroutine, which can't await anything any more, cleans up.
        """
        life = call.life
        stepper = life if call.in_loop else call
        reply: Reply = None
        interruption: BaseException | None = None
        if call.awaited:
            life.active += 1
        try:
            while True:
                try:
                    while True:  # Within the `try`: an interruption can come where a loop repeats.
                        outer = stepper.stepping
                        try:
                            stepper.stepping = True
                            effect = steps.send(reply) if interruption is None else steps.throw(interruption)
                        finally:
                            stepper.stepping = outer
                            # The error refers to this frame, so this frame must not refer to the error.
                            interruption = None
                        performing = self.perform(effect, call)
                        reply = None if performing is None else await performing
                except GeneratorExit:
                    interruption = _Dropped()
                except BaseException as error:
                    if steps.gi_frame is not None:  # type: ignore[attr-defined]  # It is a generator, not a lookalike.
                        # The protocol cleans up, no matter whether an effect or the lines above raised the error.
                        interruption = error
                    elif isinstance(error, StopIteration):
                        result: T = error.value
                        return result
                    elif isinstance(error, _Dropped):
                        raise GeneratorExit from None
                    else:
                        raise
        finally:
            if call.awaited:
                call.end()

    def perform(self, effect: Effect, call: AioCall) -> Coroutine[Any, Any, Reply] | None:
        """Perform an effect in the calling task; return what to await for its reply, None if there is none.

        The client's own task does its work while its watchdog sleeps.
        """
        if not call.in_loop:
            call.life.post(self.perform, effect, AioCall(call.life))
            return None
        match effect:
            case Broadcast():
                return self._broadcast(effect, call)
            case Tell():
                self._tell(effect, call)
            case Wait():
                return self._wait(effect, call) if call.awaited else self._maintain(effect, call)
            case Signal(key):
                call.life.wakeups.signal(key)
            case Notify(event):
                self.notifier.announce(event)
            case _:
                assert_never(effect)
        return None

    async def _maintain(self, effect: Wait, call: AioCall) -> Wakeup:
        assert call.life.maintenance is not None, "it runs this"
        await call.life.maintenance.sleep(effect.until)
        return Wakeup(self.clock(), 0)

    def _links(self, effect: Broadcast | Tell, call: AioCall) -> AioLinkSet:
        """Return the links for a command; raise in another process: no child of a fork acts for its parent."""
        owner, life = effect.owner, call.life
        if life.process != os.getpid() or (owner is not None and owner.client_id != life.client_id):
            raise forked()
        return life.links

    def _tell(self, effect: Tell, call: AioCall) -> None:
        self._links(effect, call).send_soon(Request(effect, None))

    async def _broadcast(self, effect: Broadcast, call: AioCall) -> Tally:
        links, clock = self._links(effect, call), self.clock
        if not call.life.ready:
            await call.life.await_begun(effect.patience)
        if effect.subscribe is not None:
            call.life.wakeups.subscribe(effect.subscribe, effect.guard)
            call.subscribed.add(effect.subscribe)
        tally = effect.tally(self._addresses)
        request = Request(effect, tally)
        if request.make():
            tally.sent_at = clock()
            deadline = tally.sent_at + effect.timeout
            links.send_soon(request)
            await links.sleep(request, deadline)
            if call.awaited and not tally.won:  # The maintenance has to connect, so its own rounds can't wait for that.
                await links.repeat(request, deadline)
                tally = request.tally or tally
            if not request.done:
                links.close_round(request, f"no answer within {effect.timeout:g} s")
        else:
            tally.close("nothing to send")
        self.notifier.note_round(tally)
        tally.at = clock()
        return tally

    async def _wait(self, effect: Wait, call: AioCall) -> Wakeup:
        life, links = call.life, call.life.links
        waits = life.wakeups.waits(effect)
        try:
            while True:
                try:
                    waitable, until = next(waits)
                except StopIteration as stop:
                    self.require_open()
                    return Wakeup(self.clock(), *stop.value)
                await links.sleep(waitable, until)
        finally:
            waits.close()

    # The end.

    async def close(self) -> None:
        """Wake waiters, run the shutdown protocol, stop the maintenance, end the connections; idempotent.

        A cancelled close still runs to its end.

        Raises:
            ConfigurationError: The client belongs to another loop.
        """
        life = self.life
        life.failure = None
        if life.task is None or life.loop is None:
            self.closed = True
        elif life.loop.is_closed():
            # Its task can do nothing any more.
            self.closed = True
            life.links.end("its loop was closed", orderly=True)
        elif not life.task.done():
            if asyncio.get_running_loop() is not life.loop:
                raise ConfigurationError(_OTHER_LOOP)
            life.begin_closing()
            await asyncio.wait([life.task])

    def abandon(self) -> None:
        """Let the loop close the client; safe in a finalizer, which may interrupt anything, in any thread."""
        life = self._lives.get(os.getpid())
        if life is None or life.loop is None:
            self.closed = True
        else:
            life.post(life.begin_closing)


async def _give_back(action: Callable[[], Coroutine[Any, Any, None]]) -> None:
    try:
        await action()
    except LeaseLostError as error:
        log.warning("a dropped coroutine had lost its hold: %s", error)
    except RedsyncError:
        pass  # It was released before, or will be when the client closes.


def _at_once(coroutine: Coroutine[object, None, T]) -> T:
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        coroutine.close()
    raise AssertionError("a protocol that waits for nothing has waited")


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the running loop; None if there is none."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError as error:
        if type(error) is not RuntimeError:
            raise  # a signal handler's
        return None
