"""Functions that run inside a `with`: the common base of the decorators of locks and rate limiters."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, ParamSpec, TypeAlias, TypeVar

from redsync.exceptions import AcquireTimeout

__all__ = ["OnBusy", "check_on_busy", "wrap", "wrap_async"]

P = ParamSpec("P")
R = TypeVar("R")

OnBusy: TypeAlias = str | Callable[..., Any]
"""The action of a call that did not get the lock, or that the rate did not allow."""


def check_on_busy(on_busy: OnBusy) -> None:
    """Raise a ValueError if `on_busy` is invalid, see `Client.locked`."""
    if on_busy not in ("raise", "skip") and not callable(on_busy):
        raise ValueError(f'on_busy must be "raise", "skip" or a function, not {on_busy!r}')


def wrap(
    function: Callable[P, R],
    find: Callable[[], Callable[P, Any]],
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
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> Any:
        guard, entered = guard_of(*args, **kwargs), False
        try:
            with guard:
                entered = True
                return function(*args, **kwargs)
        except AcquireTimeout:
            if entered or on_busy == "raise":  # If entered, the function itself raised it.
                raise
            return on_busy(*args, **kwargs) if callable(on_busy) else None

    return wrapped


def wrap_async(
    function: Callable[P, Awaitable[R]],
    find: Callable[[], Callable[P, Any]],
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
    async def wrapped(*args: P.args, **kwargs: P.kwargs) -> Any:
        guard, entered = guard_of(*args, **kwargs), False
        try:
            async with guard:
                entered = True
                return await function(*args, **kwargs)
        except AcquireTimeout:
            if entered or on_busy == "raise":  # If entered, the function itself raised it.
                raise
            busy = on_busy(*args, **kwargs) if callable(on_busy) else None
            return await busy if inspect.isawaitable(busy) else busy

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
