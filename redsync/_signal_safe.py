"""A lock and an event that stay whole if a signal handler raises an exception inside.

Python's own do not: an exception that strikes at the wrong instant leaves the lock, or the one inside the event,
locked, and all other threads wait for it forever.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

__all__ = ["SafeEvent", "SafeLock"]

_ONCE: Final = (True,)


class SafeLock:
    """A lock for `with` that an exception of a signal handler never leaves locked.

    Python 3.14 looks for signals between the `__enter__` of a builtin lock and the block.

    Attributes:
        lock: The lock that it takes.
    """

    # As a slot, `__exit__` is the lock's own: before a function of C Python does not look for signals.
    __slots__ = ("__exit__", "_acquire", "lock")

    __exit__: Callable[..., None]

    def __init__(self, lock: Any) -> None:
        self.lock: Final = lock
        self._acquire: Final = lock.acquire
        self.__exit__ = lock.__exit__

    def __enter__(self) -> None:
        taken: list[bool] = []
        try:
            # One call of C: the list has an element if and only if the lock was taken.
            taken.extend(map(self._acquire, _ONCE))
        except BaseException:
            if taken:
                self.lock.release()
            raise


class SafeEvent:
    """Like `threading.Event`, whose lock may stay locked after an exception of a signal handler."""

    def __init__(self) -> None:
        self._is_set = False
        self._gates: Final[dict[int, threading.Lock]] = {}

    def is_set(self) -> bool:
        """Return whether it was set."""
        return self._is_set

    def set(self) -> None:
        """Wake all that wait, and let none wait again."""
        self._is_set = True
        for key in list(self._gates):
            gate = self._gates.pop(key, None)
            if gate is not None:
                gate.release()

    def wait(self, timeout: float) -> None:
        """Return once it is set, or after `timeout` seconds."""
        gate = threading.Lock()
        gate.acquire()
        try:
            self._gates[id(gate)] = gate
            if not self._is_set:  # Only now: else it might be set in between.
                gate.acquire(timeout=min(timeout, threading.TIMEOUT_MAX))
        finally:
            self._gates.pop(id(gate), None)
