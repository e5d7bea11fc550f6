"""Virtual time, clocks that may disagree, and the event loop of a simulation, which runs unchanged asyncio code.

True time is in seconds since the simulation began. Only the simulation knows it: programs and nodes read their own
clocks. Entries due at one instant happen in the order in which they were scheduled, so a run has only one order.

Time jumps to the next timer or packet, and no time passes while callbacks run. Each callback belongs to the machine
that its context names. Within a machine callbacks run in asyncio's order; between machines the seed decides which runs
next. The callbacks of a paused machine wait, those of a crashed one never run.

Loop time on a machine is that machine's clock. Tasks and futures are hashed by number, so that sets of them, which
asyncio itself uses, have the same order in every run.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
import math
import sys
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeAlias, TypeVar

from redsync.exceptions import RedsyncError

__all__ = ["Clock", "Entry", "Host", "NoRealIOError", "Timeline", "VirtualLoop"]

_push = heapq.heappush

Entry: TypeAlias = tuple[float, int, Any, Any, tuple[Any, ...] | None]
"""True instant, running number, host, and the action: a function and its arguments, or a timer and None."""


class Timeline:
    """The future, in order.

    Attributes:
        now: The present instant of true time, in seconds.
        entries: A heap of future entries.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.entries: list[Entry] = []
        self._number: Final = itertools.count()

    def schedule(self, when: float, concerned: Any, action: Any, args: tuple[Any, ...] | None = ()) -> None:
        """Schedule an action at an instant, or at once if the instant has passed."""
        when = max(when, self.now)
        _push(self.entries, (when, next(self._number), concerned, action, args))

    def after(self, seconds: float, action: Callable[..., object], *args: Any) -> None:
        """Schedule an action that concerns no machine, some seconds from now."""
        self.schedule(self.now + seconds, None, action, args)

    def replace(self, entries: Iterable[Entry]) -> None:
        """Replace all entries."""
        self.entries[:] = entries
        heapq.heapify(self.entries)


class Clock:
    """A clock that may go wrong.

    Attributes:
        rate: The seconds that it counts per second of true time.
    """

    def __init__(self, timeline: Timeline, start: float = 0.0, rate: float = 1.0) -> None:
        self._timeline: Final = timeline
        self._true = timeline.now
        self._local = start
        self.rate = rate

    def now(self) -> float:
        """Return the time that it shows, in seconds."""
        return self._local + (self._timeline.now - self._true) * self.rate

    def instant(self, local: float) -> float:
        """Return the first instant of true time at which it shows `local` or more, at its present rate."""
        true = self._true + (local - self._local) / self.rate
        while self._local + (true - self._true) * self.rate < local:
            true = math.nextafter(true, math.inf)
        return true

    def change(self, *, rate: float | None = None, jump: float = 0.0) -> None:
        """Continue at another rate, or from another time."""
        self._local, self._true = self.now() + jump, self._timeline.now
        self.rate = self.rate if rate is None else rate


T = TypeVar("T")

Coro: TypeAlias = Coroutine[Any, Any, T] | Generator[Any, None, T]

_HOST: Final[contextvars.ContextVar[Host]] = contextvars.ContextVar("redsync_simulated_host")


_LAST_CALLBACKS = 10_000
"""The number of callbacks that may still run while everything is being cancelled."""


class NoRealIOError(RedsyncError, RuntimeError):
    """A simulated program asked for real threads, sockets, processes or signals; a simulation has none."""


class _Future(asyncio.Future[T]):
    _number: int

    def __hash__(self) -> int:
        return self._number


class _Task(asyncio.Task[T]):
    def __init__(self, number: int, host: Host, coro: Coro[T], **options: Any) -> None:
        self._number = number
        self.host = host
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self._number


class Host:
    """A host on which callbacks run, one after the other.

    Attributes:
        name: Its name in the trace.
        clock: Its clock.
        context: The context of its callbacks.
        ready: The callbacks that it runs next.
        paused: True while it is paused: callbacks that are due wait.
        crashed: True if it never runs anything again.
        stepped: True if a protocol made a step since this was last reset.
    """

    def __init__(self, name: str, clock: Clock) -> None:
        self.name: Final = name
        self.clock: Final = clock
        self.context: Final = contextvars.Context()
        self.context.run(_HOST.set, self)
        self.ready: Final[deque[asyncio.Handle]] = deque()
        self.timers: Final[list[asyncio.Handle]] = []
        self.paused = self.crashed = self.stepped = False


_MOST_STEPS = 200_000
"""The most callbacks at one instant. A program that makes more loops forever, and no time passes."""


class VirtualLoop(asyncio.AbstractEventLoop):
    """Runs the callbacks of all machines of one simulation.

    Attributes:
        world: The host of callbacks without a machine.
        current: The host whose callback is running.
        on_step: Called after each callback in which a protocol made a step, with its host.
        on_error: Called with asyncio's reports of unawaited errors.
        on_connect: Connects a machine to a host and port with a protocol factory, like `create_connection`.
    """

    def __init__(self, timeline: Timeline, rng: Callable[[], float]) -> None:
        self._timeline: Final = timeline
        self._rng: Final = rng
        self.world: Final = Host("the world", Clock(timeline))
        self.current = self.world
        self.on_step: Callable[[Host], object] = lambda _: None
        self.on_error: Callable[[dict[str, Any]], object] = lambda _: None
        self.on_connect: Callable[[Host, str, int, Callable[[], Any]], Coroutine[Any, Any, Any]] | None = None
        self._busy: Final[list[Host]] = []
        self._generators: Final[dict[int, Host]] = {}
        self._numbers: Final = itertools.count(1)
        self._stopping = self._closed = False

    # Running.

    def advance(self, until: float) -> bool:
        """Run until `stop` is called or the instant has come; return False if no event is left before it."""
        timeline, busy, rng = self._timeline, self._busy, self._rng
        entries = timeline.entries
        steps = 0
        self._stopping = False
        if asyncio._get_running_loop() is not None:
            raise RuntimeError("a simulation has its own event loop: run it outside of coroutines")
        with self._running():
            while not self._stopping:
                if busy:
                    steps += 1
                    if steps > _MOST_STEPS:
                        raise RuntimeError(f"{_MOST_STEPS:,} steps at one instant: a program or protocol loops forever")
                    self._run_one(busy[0] if len(busy) == 1 else busy[int(rng() * len(busy))])
                    continue
                if not entries:
                    return False
                if entries[0][0] > until:
                    timeline.now = until
                    return True
                when, _, host, action, args = heapq.heappop(entries)
                if when > timeline.now:
                    timeline.now, steps = when, 0
                if args is None:
                    self._fire(host, action)
                elif host is None:
                    action(*args)
                else:
                    self._deliver(host, action, args)
            return True

    @contextmanager
    def _running(self) -> Iterator[None]:
        """Be the running loop of this thread, which closes forgotten asynchronous generators."""
        outer, hooks = asyncio._get_running_loop(), sys.get_asyncgen_hooks()
        asyncio._set_running_loop(self)
        sys.set_asyncgen_hooks(self._begin_generator, self._close_generator)
        try:
            yield
        finally:
            asyncio._set_running_loop(outer)
            sys.set_asyncgen_hooks(*hooks)

    def _begin_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        self._generators[id(generator)] = self.current

    def _close_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        host = self._generators.pop(id(generator))  # another may run now: the garbage collector calls this anywhere
        if not self._closed:
            self.call_soon(lambda: self.create_task(generator.aclose()), context=host.context)

    def _run_one(self, host: Host) -> None:
        handle = host.ready.popleft()
        if not host.ready:
            self._busy.remove(host)
        if not handle._cancelled:
            self.current = host
            # Like `Handle._run`, but saves one call per callback.
            try:
                handle._context.run(handle._callback, *handle._args)  # type: ignore[attr-defined]
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:
                self.call_exception_handler({"message": f"Exception in callback {handle}", "exception": error})
            self.current = self.world
            if host.stepped:
                host.stepped = False
                self.on_step(host)

    def _fire(self, host: Host, timer: asyncio.Handle) -> None:
        if timer.cancelled() or host.crashed:
            return
        if host.paused:
            host.timers.append(timer)
        else:
            self._enqueue(host, timer)

    def _deliver(self, host: Host, action: Callable[..., object], args: tuple[Any, ...]) -> None:
        """Deliver a message to a host: at once if it has nothing else to do."""
        if host.crashed:
            return
        if host.paused or host.ready:
            self._enqueue(host, asyncio.Handle(action, args, self, host.context))
            return
        self.current = host
        host.context.run(action, *args)
        self.current = self.world

    def _enqueue(self, host: Host, handle: asyncio.Handle) -> None:
        if not host.ready and not host.paused:
            self._busy.append(host)
        host.ready.append(handle)

    # Faults of hosts.

    def pause(self, host: Host) -> None:
        """Pause a host; its clock continues."""
        host.paused = True
        if host in self._busy:
            self._busy.remove(host)

    def resume(self, host: Host) -> None:
        """Let a host continue: first with what it received meanwhile, then with its timers, as asyncio does."""
        host.paused = False
        host.ready.extend(host.timers)
        host.timers.clear()
        if host.ready:
            self._busy.append(host)

    def crash(self, host: Host) -> None:
        """Stop a host permanently."""
        host.crashed = True
        host.ready.clear()
        host.timers.clear()
        if host in self._busy:
            self._busy.remove(host)

    def retime(self, host: Host) -> None:
        """Recompute when a host's timers are due, after a change of its clock."""
        self._timeline.replace(
            (max(host.clock.instant(entry[3].when()), self._timeline.now), *entry[1:])
            if entry[2] is host and entry[4] is None
            else entry
            for entry in self._timeline.entries
        )

    def drain(self) -> None:
        """Cancel all tasks and let them end, even on paused or crashed hosts; forget tasks that do not end."""
        self._timeline.entries.clear()
        for task in asyncio.all_tasks(self):
            assert isinstance(task, _Task), "this loop makes no others"
            task.host.crashed = False
            if task.host.paused:
                self.resume(task.host)
            task.cancel()
        left = _LAST_CALLBACKS
        try:
            with self._running():
                while self._busy and left:
                    left -= 1
                    self._run_one(self._busy[0])
        finally:
            self._closed = True

    # The interface that asyncio demands of a loop.

    def time(self) -> float:
        """Return the time on the running machine's clock."""
        return self.current.clock.now()

    def call_soon(  # type: ignore[override]  # the arguments' types are not followed through
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """Run a callback after those that its machine already has to run."""
        if context is None:
            context = contextvars.copy_context()
        handle = asyncio.Handle(callback, args, self, context)
        host = context.get(_HOST, self.world)
        if not host.crashed:
            self._enqueue(host, handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]  # the arguments' types are not followed through
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """Run a callback some seconds from now, by its machine's clock."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]  # the arguments' types are not followed through
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """Run a callback when its machine's clock shows that time."""
        if context is None:
            context = contextvars.copy_context()
        host = context.get(_HOST, self.world)
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        if not host.crashed:
            self._timeline.schedule(host.clock.instant(when), host, handle, None)
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: a cancelled timer is skipped when it is due."""

    def create_future(self) -> asyncio.Future[Any]:
        """Return a new future."""
        future: _Future[Any] = _Future(loop=self)
        future._number = next(self._numbers)
        return future

    def create_task(
        self, coro: Coro[T], *, name: object = None, context: contextvars.Context | None = None, **options: Any
    ) -> asyncio.Task[T]:
        """Return a new task; the default name is the same in every run."""
        number = next(self._numbers)
        title = f"task-{number}" if name is None else str(name)
        host = _HOST.get(self.world) if context is None else context.get(_HOST, self.world)
        return _Task(number, host, coro, loop=self, name=title, context=context, **options)

    def stop(self) -> None:
        """Make `advance` return after the current callback."""
        self._stopping = True

    def is_closed(self) -> bool:
        """Return whether the loop is closed."""
        return self._closed

    # `bool()` is False and fast, which matters because each handle asks. Debug mode only adds checks of real time.
    get_debug = bool

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Report an unawaited error."""
        if not self._closed:
            self.on_error(context)

    async def create_connection(  # type: ignore[override]  # a connection of a simulation has no options
        self, protocol_factory: Callable[[], Any], host: str = "", port: int = 0, **options: Any
    ) -> Any:
        """Connect the running machine to a node.

        Raises:
            NoRealIOError: The caller asked for TLS, passed its own socket, or used another option.
        """
        if self.on_connect is None or any(value is not None for value in options.values()):
            raise NoRealIOError("loop.create_connection() connects a machine to a node by its name, without options")
        return await self.on_connect(_HOST.get(self.world), host, port, protocol_factory)

    def getaddrinfo(self, *_name: Any, **_options: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """Return a lookup that has ended: machines of a simulation connect by name."""
        lookup = self.create_future()
        lookup.set_result([])
        return lookup


def _refuse(name: str) -> Callable[..., Any]:
    def refuse(*_args: Any, **_options: Any) -> Any:
        raise NoRealIOError(f"loop.{name}() needs real threads, sockets, processes or signals; a simulation has none")

    return refuse


for _name, _function in vars(asyncio.AbstractEventLoop).items():
    if callable(_function) and not _name.startswith("_") and _name not in vars(VirtualLoop):
        setattr(VirtualLoop, _name, _refuse(_name))
