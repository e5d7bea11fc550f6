"""Tasks as owners, and the cancellation of their bodies, for any driver on an asyncio loop."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from redsync._core.ownership import Owner

__all__ = ["TaskOwners", "TaskScope"]


class TaskOwners:
    """The owner of each task. When a task ends, its owner ends too, and `on_ended` is called.

    Everything happens in one thread, the loop's. A task that lives on does not keep this object in memory.
    """

    def __init__(self, new_owner: Callable[[], Owner], on_ended: Callable[[Owner], object]) -> None:
        self._new_owner: Final = new_owner
        self._on_ended: Final = on_ended
        self._owners: Final[dict[asyncio.Task[Any], Owner]] = {}
        self._on_done: Final = partial(_end, weakref.ref(self))

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
            task.add_done_callback(self._on_done)
        return owner

    def end(self, task: asyncio.Task[Any]) -> None:
        """End the owner of a task that has ended."""
        owner = self._owners.pop(task, None)
        if owner is not None:  # else the client was closed in the same turn of the loop
            self._on_ended(owner)

    def close(self) -> None:
        """Forget all owners: the client was closed."""
        while self._owners:
            task, _ = self._owners.popitem()
            task.remove_done_callback(self._on_done)


def _end(owners: weakref.ref[TaskOwners], task: asyncio.Task[Any]) -> None:
    if (alive := owners()) is not None:
        alive.end(task)


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
