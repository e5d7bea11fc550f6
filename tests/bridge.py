"""One source of conformance tests for both flavours: gives the asyncio one the methods of the one for threads.

A task of one event loop, its *actor*, represents each thread of a test and makes its calls. So the owner is a task
where the test sees a thread, and everything that is awaited is awaited in a real loop.
"""

import asyncio
import gc
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from inspect import isawaitable

import redsync
from redsync import AsyncClient

TWINS = {
    getattr(redsync, name): getattr(redsync, name.removeprefix("Async"))
    for name in redsync.__all__
    if name.startswith("Async")
}
"""Classes for threads, by those for asyncio."""


class Stage:
    """The task's side: the calls to make, and whether it was cancelled between two of them."""

    def __init__(self):
        self.jobs = asyncio.Queue()
        self._cancelled = False

    async def play(self):
        while True:
            try:
                job = await self.jobs.get()
            except asyncio.CancelledError:
                # The body of an `async with`, which runs in the thread meanwhile.
                self._cancelled = True
                continue
            if job is None:
                return
            await self._do(*job)
            job = None

    async def _do(self, function, future):
        try:
            result = function()
            future.set_result(await result if isawaitable(result) else result)
        except BaseException as error:
            future.set_exception(error)

    def take_cancelled(self) -> bool:
        """Return whether the task was cancelled between two calls; called by the task itself."""
        cancelled, self._cancelled = self._cancelled, False
        return cancelled


class Actor:
    """The task that represents one thread, and ends with it."""

    def __init__(self, bridge):
        self._loop = bridge.loop
        self.stage = Stage()
        name = f"actor of {threading.current_thread().name}"
        asyncio.run_coroutine_threadsafe(bridge.begin(self.stage.play(), name), self._loop).result(10)

    def call(self, function: Callable[[], object]):
        """Call a function in the task, and await its result if it is awaitable."""
        future = Future()
        self._loop.call_soon_threadsafe(self.stage.jobs.put_nowait, (function, future))
        try:
            return future.result(20)
        finally:
            del future

    def __del__(self):
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.stage.jobs.put_nowait, None)


class Bridge:
    """An event loop in its own thread, and the actors of all other threads."""

    def __init__(self):
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="bridge", daemon=True)
        self._thread.start()
        self._tasks = set()
        self._local = threading.local()

    @property
    def actor(self) -> Actor:
        """The calling thread's actor."""
        if not hasattr(self._local, "actor"):
            self._local.actor = Actor(self)
        return self._local.actor

    async def begin(self, coroutine, name):
        """Start an actor's task, and keep a reference: a loop alone does not."""
        task = asyncio.create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def call(self, function):
        if threading.current_thread() is self._thread:
            # A callback, from the loop: the function that it calls awaits nothing.
            return self.cross(function())
        return self.cross(self.actor.call(function))

    def cross(self, value):
        """Return the value that a test gets for a value of the other side."""
        return Bridged(self, value) if type(value) in TWINS else value

    def connect(self, nodes, **options):
        """Return a connected client, as for threads."""
        # An earlier test may have left the body of a `with` without `__exit__`.
        self.actor.stage.take_cancelled()
        client = AsyncClient(nodes, **options)
        return self.call(client.__aenter__)

    def tasks(self) -> list[str]:
        """Return the names of redsync's tasks."""
        names = asyncio.run_coroutine_threadsafe(self._names(), self.loop).result(10)
        return [name for name in names if name.startswith("redsync-")]

    async def _names(self):
        return [task.get_name() for task in asyncio.all_tasks()]

    async def _wait_for_actors(self):
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=5)

    def end(self):
        del self._local
        # An error that a test has seen keeps the actor's frames, and may be part of a cycle.
        gc.collect()
        asyncio.run_coroutine_threadsafe(self._wait_for_actors(), self.loop).result(10)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()


class Bridged:
    """An async object with the methods of its twin."""

    def __init__(self, bridge, real):
        self._bridge = bridge
        self._real = real

    @property
    def __class__(self):
        return TWINS[type(self._real)]

    def __getattr__(self, name):
        value = self._bridge.call(partial(getattr, self._real, name))
        return partial(self._call, value) if callable(value) else value

    def _call(self, method, /, *args, **kwargs):
        if kwargs.get("on_lost") is not None:
            tell = kwargs["on_lost"]
            kwargs["on_lost"] = lambda hold: tell(self._bridge.cross(hold))
        # An object made of our locks must be made of the real ones.
        args = [each._real if type(each) is Bridged else each for each in args]
        return self._bridge.call(partial(method, *args, **kwargs))

    def __enter__(self):
        return self._bridge.call(self._real.__aenter__)

    def __exit__(self, kind, error, traceback):
        self._bridge.call(partial(_leave, self._bridge.actor.stage, self._real, error))

    def __repr__(self):
        return repr(self._real).replace("<Async", "<")


async def _leave(stage, real, error):
    if stage.take_cancelled() and error is None:
        error = asyncio.CancelledError()
    await real.__aexit__(type(error) if error else None, error, None)
