"""Gives clients for threads the methods of asyncio clients, so that an owner's code is written once.

Nothing here waits for an event loop: each `await` makes a blocking call and continues at once, in the same thread.
"""

from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")

_AWAITED: Final = {"acquire", "available", "close", "count", "count_down", "delete", "extend", "force_release"} | {
    *("holders", "inspect", "locked", "permits", "release", "resize", "retry_after", "try_set_count", "wait"),
    *("acquire_permit", "set_rate", "wait_lost"),
}
"""The methods that are coroutines in asyncio's flavour. Inspecting that flavour would load it in each process."""


def run(steps: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that awaits only `Blocking` objects, in this thread; return its result."""
    try:
        steps.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("this coroutine waits for an event loop, and there is none")


class Blocking:
    """A client for threads, or an object that it returns; methods that its asyncio twin awaits are awaited here too."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    async def __aenter__(self) -> Any:
        return _wrap(self._inner.__enter__())

    async def __aexit__(self, *error: object) -> bool | None:
        stops: bool | None = self._inner.__exit__(*error)
        return stops

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name.startswith("_"):
            return found
        wrapped = _wrap(found)
        if wrapped is not found or not callable(found):
            return wrapped
        if name in _AWAITED:
            return _awaited(found)
        return lambda *args, **options: _wrap(found(*args, **options))


def _awaited(method: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
    async def call(*args: Any, **options: Any) -> Any:
        return _wrap(method(*args, **options))

    return call


def _wrap(value: Any) -> Any:
    module = type(value).__module__
    return Blocking(value) if module == "redsync.client" or module.startswith("redsync._facades.") else value
