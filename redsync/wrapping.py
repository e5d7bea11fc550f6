"""Functions that run inside of something: what the decorators of locks and rate limiters have in common."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack, ExitStack
from typing import Any, ParamSpec, TypeVar

from redsync.exceptions import AcquireTimeout

__all__ = ["OnBusy", "wrap", "wrap_async"]

P = ParamSpec("P")
R = TypeVar("R")


class OnBusy:
    """What a call does when it did not get in."""

    def __init__(self, on_busy: str | Callable[..., Any]) -> None:
        """Begin; `on_busy` as for `Client.locked`.

        Raises:
            ValueError: It is of no known kind.
        """
        if on_busy not in ("raise", "skip") and not callable(on_busy):
            raise ValueError(f'on_busy is "raise", "skip" or a function, not {on_busy!r}')
        self._on_busy = on_busy

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the call gives; called while the `AcquireTimeout` is being handled."""
        if self._on_busy == "raise":
            raise  # noqa: PLE0704
        return self._on_busy(*args, **kwargs) if callable(self._on_busy) else None


def wrap(
    function: Callable[P, R],
    find: Callable[[], Callable[P, AbstractContextManager[Any]]],
    on_busy: OnBusy,
    what: str,
) -> Callable[P, R]:
    """Return a function that enters what `find()` returns for its arguments, and then does the same.

    Raises:
        TypeError: A generator function, or a coroutine function.
    """
    _refuse_generator(function, what)
    if inspect.iscoroutinefunction(function):
        raise TypeError(f"{function.__qualname__} is a coroutine function: use the AsyncClient's decorator")
    guard_of = find()

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        guard = guard_of(*args, **kwargs)
        try:
            guard.__enter__()
        except AcquireTimeout:
            busy: R = on_busy(*args, **kwargs)
            return busy
        with ExitStack() as stack:
            # Entered above, apart from the body: an AcquireTimeout of the function's own is not ours to handle.
            stack.push(guard)
            return function(*args, **kwargs)

    return wrapped


def wrap_async(
    function: Callable[P, Awaitable[R]],
    find: Callable[[], Callable[P, AbstractAsyncContextManager[Any]]],
    on_busy: OnBusy,
    what: str,
) -> Callable[P, Awaitable[R]]:
    """Return a coroutine function that enters what `find()` returns for its arguments, and then does the same.

    Raises:
        TypeError: A generator function, or one that is no coroutine function.
    """
    _refuse_generator(function, what)
    if not inspect.iscoroutinefunction(function):
        raise TypeError(f"{function.__qualname__} is no coroutine function: use the Client's decorator")
    guard_of = find()

    @functools.wraps(function)
    async def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        guard = guard_of(*args, **kwargs)
        try:
            await guard.__aenter__()
        except AcquireTimeout:
            busy = on_busy(*args, **kwargs)
            result: R = await busy if inspect.isawaitable(busy) else busy
            return result
        async with AsyncExitStack() as stack:
            stack.push_async_exit(guard)
            return await function(*args, **kwargs)

    return wrapped


def _refuse_generator(function: Callable[..., Any], what: str) -> None:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"{function.__qualname__} is a generator function: its body would run without {what}")
