"""`@client.locked("report:{user_id}")`: a function that runs under a lock named by its arguments."""

from __future__ import annotations

import inspect
import string
from collections.abc import Awaitable, Callable
from typing import Any, Generic, ParamSpec, TypeVar

from redsync._core.timing import check_timeout
from redsync.lock import AsyncLock, Lock
from redsync.wrapping import OnBusy, wrap, wrap_async

__all__ = ["async_locked_decorator", "locked_decorator"]

P = ParamSpec("P")
R = TypeVar("R")
LockT = TypeVar("LockT", bound=Lock | AsyncLock)


class _Rule(Generic[LockT]):
    """What a decorator was told: which lock a call needs, and what to do when that is busy."""

    def __init__(
        self,
        get_lock: Callable[..., LockT],
        template: str,
        timeout: float | None,
        on_busy: str | Callable[..., Any],
        options: dict[str, Any],
    ) -> None:
        self._get_lock = get_lock
        self._template = template
        self._options = {"timeout": check_timeout(True, timeout), **options}
        self.on_busy = OnBusy(on_busy)
        self._fields = [field for _, field, _, _ in string.Formatter().parse(template) if field is not None]

    def lock_of(self, function: Callable[..., Any]) -> Callable[..., LockT]:
        """Return what makes the lock for a call of that function."""
        signature = inspect.signature(function)
        _check_fields(self._fields, signature, self._template)

        def lock_of_call(*args: Any, **kwargs: Any) -> LockT:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            name = self._template.format(**bound.arguments) if self._fields else self._template
            return self._get_lock(name, **self._options)

        return lock_of_call


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
) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Awaitable[R]]]:
    """Return the decorator that `AsyncClient.locked` documents."""
    rule = _Rule(get_lock, template, timeout, on_busy, options)

    def decorate(function: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
        return wrap_async(function, lambda: rule.lock_of(function), rule.on_busy, "the lock")

    return decorate


def _check_fields(fields: list[str], signature: inspect.Signature, template: str) -> None:
    for field in fields:
        name = field.split(".")[0].split("[")[0]
        if name not in signature.parameters:
            known = ", ".join(signature.parameters) or "none"
            raise ValueError(f"{template!r} names {name!r}, which is no parameter of the function (it has: {known})")
