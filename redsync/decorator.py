"""`@client.locked("report:{user_id}")`: a function that runs under a lock named by its arguments."""

from __future__ import annotations

import functools
import inspect
import string
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack
from typing import Any, Generic, ParamSpec, TypeVar

from redsync._core.timing import check_timeout
from redsync.exceptions import AcquireTimeout
from redsync.lock import AsyncLock, Lock

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
        if on_busy not in ("raise", "skip") and not callable(on_busy):
            raise ValueError(f'on_busy is "raise", "skip" or a function, not {on_busy!r}')
        self._on_busy = on_busy
        self._fields = [field for _, field, _, _ in string.Formatter().parse(template) if field is not None]

    def lock_of(self, function: Callable[..., Any]) -> Callable[..., LockT]:
        """Return what makes the lock for a call of that function."""
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(f"{function.__qualname__} is a generator function: its body would run without the lock")
        signature = inspect.signature(function)
        _check_fields(self._fields, signature, self._template)

        def lock_of_call(*args: Any, **kwargs: Any) -> LockT:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            name = self._template.format(**bound.arguments) if self._fields else self._template
            return self._get_lock(name, **self._options)

        return lock_of_call

    def busy(self, *args: Any, **kwargs: Any) -> Any:
        """Return what a call gives when others held the lock all the time; called while that error is handled."""
        if self._on_busy == "raise":
            raise  # noqa: PLE0704  (the AcquireTimeout that is being handled)
        return self._on_busy(*args, **kwargs) if callable(self._on_busy) else None


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
        if inspect.iscoroutinefunction(function):
            raise TypeError(f"{function.__qualname__} is a coroutine function: use the AsyncClient's decorator")
        lock_of = rule.lock_of(function)

        @functools.wraps(function)
        def locked(*args: P.args, **kwargs: P.kwargs) -> R:
            lock = lock_of(*args, **kwargs)
            try:
                lock.__enter__()
            except AcquireTimeout:
                busy: R = rule.busy(*args, **kwargs)
                return busy
            with ExitStack() as stack:
                # Entered above, apart from the body: an AcquireTimeout of the function's own is not ours to handle.
                stack.push(lock)
                return function(*args, **kwargs)

        return locked

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
        lock_of = rule.lock_of(function)
        if not inspect.iscoroutinefunction(function):
            raise TypeError(f"{function.__qualname__} is no coroutine function: use the Client's decorator")

        @functools.wraps(function)
        async def locked(*args: P.args, **kwargs: P.kwargs) -> R:
            lock = lock_of(*args, **kwargs)
            try:
                await lock.__aenter__()
            except AcquireTimeout:
                busy = rule.busy(*args, **kwargs)
                result: R = await busy if inspect.isawaitable(busy) else busy
                return result
            async with AsyncExitStack() as stack:
                stack.push_async_exit(lock)
                return await function(*args, **kwargs)

        return locked

    return decorate


def _check_fields(fields: list[str], signature: inspect.Signature, template: str) -> None:
    for field in fields:
        name = field.split(".")[0].split("[")[0]
        if name not in signature.parameters:
            known = ", ".join(signature.parameters) or "none"
            raise ValueError(f"{template!r} names {name!r}, which is no parameter of the function (it has: {known})")
