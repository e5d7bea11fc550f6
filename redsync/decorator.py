"""`@client.locked("report:{user_id}")`: a function that runs under a lock named by its arguments."""

from __future__ import annotations

import functools
import inspect
import string
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, ParamSpec, TypeVar

from redsync._core.timing import check_timeout
from redsync.exceptions import AcquireTimeout
from redsync.lock import Lock

__all__ = ["locked_decorator"]

P = ParamSpec("P")
R = TypeVar("R")


def locked_decorator(
    get_lock: Callable[..., Lock],
    template: str,
    timeout: float | None,
    on_busy: str | Callable[..., Any],
    options: dict[str, Any],
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return the decorator that `Client.locked` documents."""
    wait = check_timeout(True, timeout)
    if on_busy not in ("raise", "skip") and not callable(on_busy):
        raise ValueError(f'on_busy is "raise", "skip" or a function, not {on_busy!r}')
    fields = [field for _, field, _, _ in string.Formatter().parse(template) if field is not None]

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        if inspect.iscoroutinefunction(function):
            raise TypeError(f"{function.__qualname__} is a coroutine function: this client is for threads")
        signature = inspect.signature(function)
        _check_fields(fields, signature, template)

        @functools.wraps(function)
        def locked(*args: P.args, **kwargs: P.kwargs) -> R:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            lock = get_lock(template.format(**bound.arguments) if fields else template, timeout=wait, **options)
            try:
                lock.__enter__()
            except AcquireTimeout:
                if on_busy == "raise":
                    raise
                result: Any = None if on_busy == "skip" else on_busy(*args, **kwargs)  # type: ignore[operator]
                return result  # type: ignore[no-any-return]
            with ExitStack() as stack:
                # Entered above, apart from the body: an AcquireTimeout of the function's own is not ours to handle.
                stack.push(lock)
                return function(*args, **kwargs)

        return locked

    return decorate


def _check_fields(fields: list[str], signature: inspect.Signature, template: str) -> None:
    for field in fields:
        name = field.split(".")[0].split("[")[0]
        if name not in signature.parameters:
            known = ", ".join(signature.parameters) or "none"
            raise ValueError(f"{template!r} names {name!r}, which is no parameter of the function (it has: {known})")
