"""Decorators: functions that run inside a `with`, under a lock that their arguments name or a rate limiter."""

from __future__ import annotations

import functools
import inspect
import string
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, ParamSpec, TypeAlias, TypeVar

from redsync._core.observing import functions_of
from redsync._core.timing import check_timeout
from redsync.exceptions import AcquireTimeout

__all__ = ["OnBusy", "check_on_busy", "locked_decorator", "wrap", "wrap_async"]

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
        TypeError: `function` is not a function or method, or a layer is a generator function, or it or `on_busy` a
            coroutine function.
    """
    layers = _layers(function, what)
    for layer in filter(inspect.iscoroutinefunction, [*layers, *functions_of(on_busy)]):
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


def locked_decorator(
    wrapped: Callable[..., Any],
    get_lock: Callable[..., Any],
    template: str,
    on_busy: OnBusy,
    options: Mapping[str, Any],
) -> Callable[[Callable[..., Any]], Any]:
    """Return the decorator that `Client.locked` documents; `wrapped` is `wrap` or `wrap_async`."""
    if not isinstance(template, str):
        raise TypeError(f"the name for @client.locked must be a string, not {template!r}")
    options = {**options, "timeout": check_timeout(True, options.get("timeout"))}
    check_on_busy(on_busy)

    def lock_of(function: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(function)
        # Make a lock and drop it: this finds errors in options and in the constant parts of the name.
        get_lock(_fill_on_trial(template, signature), **options)

        def lock_of_call(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            return get_lock(_FORMATTER.vformat(template, (), bound.arguments), **options)

        return lock_of_call

    return lambda function: wrapped(function, lambda: lock_of(function), on_busy, "the lock")


class _Formatter(string.Formatter):
    """Reads text as `get_lock` does: a member of `class Job(str, Enum)` is its value, not `Job.REPORT`."""

    def format_field(self, value: Any, format_spec: str) -> Any:
        return super().format_field(str.__str__(value) if isinstance(value, str) else value, format_spec)


_FORMATTER = _Formatter()

_OF_CLASSES = frozenset({"__class__", "__module__", "__name__", "__qualname__"})
_INNARDS = frozenset(
    {"ag_code", "ag_frame", "cr_code", "cr_frame", "f_back", "f_builtins", "f_code", "f_globals", "f_locals"}
    | {"gi_code", "gi_frame", "tb_frame"}
)
"""Attributes of generators, coroutines and tracebacks that lead to code and variables outside the arguments."""


class _Probe:
    """Stands for every argument in a template's check; refuses attributes that a template must not read."""

    def __getattribute__(self, name: str) -> _Probe:
        # If an argument is a function, `{f.__globals__[x]}` would read the global variables of its module.
        if name in _INNARDS or (name.startswith("_") and name not in _OF_CLASSES):
            raise AttributeError(name=name)
        return self

    def __getitem__(self, _: object) -> _Probe:
        return self

    def __format__(self, _: str) -> str:
        return "1"  # which is also valid as the width of another field

    def __repr__(self) -> str:
        return "1"


def _fill_on_trial(template: str, signature: inspect.Signature) -> str:
    """Return a sample name from the template; `str.format` itself parses it, so nested fields are checked too."""
    names = signature.parameters
    known = ", ".join(names) or "none"
    try:
        return template.format(**dict.fromkeys(names, _Probe()))
    except KeyError as error:
        message = f"names {error.args[0]!r}, which is not a parameter of the function (it has: {known})"
    except IndexError:
        message = f"has a field without a name, so it matches no parameter of the function (it has: {known})"
    except AttributeError as error:
        message = f"reads the attribute {error.name!r}, which is not public: use a parameter or a property"
    except ValueError as error:
        message = f"is not a template for str.format: {error} (double each literal brace)"
    raise ValueError(f"{template!r} {message}")
