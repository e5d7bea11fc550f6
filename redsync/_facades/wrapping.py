"""Functions that run inside a `with`: the common base of the decorators of locks and rate limiters."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack, ExitStack
from typing import Any, ParamSpec, TypeVar

from redsync.exceptions import AcquireTimeout

__all__ = ["OnBusy", "wrap", "wrap_async"]

P = ParamSpec("P")
R = TypeVar("R")


class OnBusy:
    """The action of a call that did not get the lock, or that the rate did not allow."""

    def __init__(self, on_busy: str | Callable[..., Any]) -> None:
        """Keep `on_busy`, as for `Client.locked`.

        Raises:
            ValueError: `on_busy` is invalid.
        """
        if on_busy not in ("raise", "skip") and not callable(on_busy):
            raise ValueError(f'on_busy must be "raise", "skip" or a function, not {on_busy!r}')
        self._on_busy = on_busy

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the result of the call; runs inside the handler of the `AcquireTimeout`."""
        if self._on_busy == "raise":
            raise  # noqa: PLE0704
        return self._on_busy(*args, **kwargs) if callable(self._on_busy) else None


def wrap(
    function: Callable[P, R],
    find: Callable[[], Callable[P, AbstractContextManager[Any]]],
    on_busy: OnBusy,
    what: str,
) -> Callable[P, R]:
    """Return a function that enters the context manager for its arguments, then calls `function`.

    `find()` returns a function that makes the context manager from the arguments.

    Raises:
        TypeError: `function` is not a function or method, or a layer is a generator function or a coroutine function.
    """
    layers = _layers(function, what)
    for layer in filter(inspect.iscoroutinefunction, layers):
        raise TypeError(f"{_name(layer)} is a coroutine function: use the AsyncClient's decorator")
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
            # Entered above, outside this `with`: an AcquireTimeout of the function itself must propagate.
            stack.push(guard)
            return function(*args, **kwargs)

    return wrapped


def wrap_async(
    function: Callable[P, Awaitable[R]],
    find: Callable[[], Callable[P, AbstractAsyncContextManager[Any]]],
    on_busy: OnBusy,
    what: str,
) -> Callable[P, Coroutine[Any, Any, R]]:
    """Return a coroutine function that enters the context manager for its arguments, then awaits `function`.

    `find()` returns a function that makes the context manager from the arguments.

    Raises:
        TypeError: `function` is not a coroutine function, or a layer is a generator function.
    """
    _layers(function, what)
    if not inspect.iscoroutinefunction(function):
        raise TypeError(f"{_name(function)} is not a coroutine function: use the Client's decorator")
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


def _layers(function: Callable[..., Any], what: str) -> list[Any]:
    """Return all layers that a call may run, innermost first, through partials, methods and `functools.wraps`.

    Raises:
        TypeError: `function` is not a function or method, or a layer is a generator function.
    """
    if isinstance(function, classmethod | staticmethod):
        raise TypeError(f"@{type(function).__name__} must be above this decorator, not below it")
    target: Any = function
    while isinstance(target, functools.partial):
        target = target.func
    # `isroutine` also accepts methods, builtins, cached and compiled functions. But it accepts any object that binds
    # like a method too, and a call of such an object may do anything.
    if not (callable(target) and inspect.isroutine(target)) or inspect.isfunction(type(target).__call__):
        raise TypeError(f"{function!r} is neither a function nor a method: decorate a function that calls it")
    layers: list[Any] = []
    layer: Any = function
    while layer is not None:
        layers.insert(0, layer)
        layer = _inside(layer)
    for layer in layers:
        if inspect.isgeneratorfunction(layer) or inspect.isasyncgenfunction(layer):
            raise TypeError(f"{_name(layer)} is a generator function: its body would run without {what}")
    return layers


def _inside(layer: Any) -> Any:
    if isinstance(layer, functools.partial):
        return layer.func
    if inspect.ismethod(layer):
        return layer.__func__
    call = type(layer).__call__
    return call if inspect.isfunction(call) else getattr(layer, "__wrapped__", None)


def _name(layer: Any) -> str:
    return str(getattr(layer, "__qualname__", repr(layer)))
