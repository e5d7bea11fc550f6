"""`@client.locked("report:{user_id}")`: runs a function under a lock that its arguments name."""

from __future__ import annotations

import inspect
import string
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, ParamSpec, TypeVar

from redsync._core.timing import check_timeout
from redsync._facades.lock import AsyncLock, Lock
from redsync._facades.wrapping import OnBusy, wrap, wrap_async

__all__ = ["async_locked_decorator", "locked_decorator"]

P = ParamSpec("P")
R = TypeVar("R")
LockT = TypeVar("LockT", bound=Lock | AsyncLock)


class _Rule(Generic[LockT]):
    """The arguments of a decorator: the lock that a call needs, and the action if it is busy."""

    def __init__(
        self,
        get_lock: Callable[..., LockT],
        template: str,
        timeout: float | None,
        on_busy: str | Callable[..., Any],
        options: dict[str, Any],
    ) -> None:
        if not isinstance(template, str):
            raise TypeError(f"the name for @client.locked must be a string, not {template!r}")
        self._get_lock = get_lock
        self._template = template
        self._options = {"timeout": check_timeout(True, timeout), **options}
        self.on_busy = OnBusy(on_busy)

    def lock_of(self, function: Callable[..., Any]) -> Callable[..., LockT]:
        """Return a function that makes the lock for a call of `function`.

        Raises:
            ValueError: The function's parameters can't fill the template, or the name is invalid for a lock.
            TypeError: An option is unknown.
        """
        signature = inspect.signature(function)
        # Make a lock and drop it: this finds errors in options and in the constant parts of the name.
        self._get_lock(_fill_on_trial(self._template, signature), **self._options)

        def lock_of_call(*args: Any, **kwargs: Any) -> LockT:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            return self._get_lock(_FORMATTER.vformat(self._template, (), bound.arguments), **self._options)

        return lock_of_call


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


def locked_decorator(
    get_lock: Callable[..., Lock],
    template: str,
    timeout: float | None,
    on_busy: str | Callable[..., Any],
    options: dict[str, Any],
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return the decorator that `Client.locked` documents."""
    rule = _Rule(get_lock, template, timeout, on_busy, options)

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        return wrap(function, lambda: rule.lock_of(function), rule.on_busy, "the lock")

    return decorate


def async_locked_decorator(
    get_lock: Callable[..., AsyncLock],
    template: str,
    timeout: float | None,
    on_busy: str | Callable[..., Any],
    options: dict[str, Any],
) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Coroutine[Any, Any, R]]]:
    """Return the decorator that `AsyncClient.locked` documents."""
    rule = _Rule(get_lock, template, timeout, on_busy, options)

    def decorate(function: Callable[P, Awaitable[R]]) -> Callable[P, Coroutine[Any, Any, R]]:
        return wrap_async(function, lambda: rule.lock_of(function), rule.on_busy, "the lock")

    return decorate
