"""Interruptions: errors that pass through our code and are none of its own.

A signal's handler runs in the main thread between any two steps of whatever that does, and what it raises comes out
there. Often that is a `TimeoutError`, which is an `OSError`: where we expect a socket's errors it must not be taken for
one of these. The traceback tells: what a socket raises, or a thread that can't be started, has come through our modules
and those that wrap sockets and threads; what a handler raises through the handler.
"""

from __future__ import annotations

from contextlib import suppress
from types import TracebackType
from typing import Final

__all__ = ["expected", "is_interruption"]

_WRAPPERS: Final = frozenset(
    {"asyncio", "fakeredis", "hiredis", "redis", "redsync", "socket", "ssl", "threading", "uvloop"}
)


def is_interruption(error: BaseException) -> bool:
    """Whether what was caught here was raised by a handler, and not by what was called here.

    To be called in the function that has caught it.
    """
    if not isinstance(error, Exception):
        return True
    traceback = error.__traceback__
    while traceback is not None:
        name = traceback.tb_frame.f_globals.get("__name__", "")
        if name.partition(".")[0] not in _WRAPPERS or name.startswith("redsync.cli"):
            return True
        traceback = traceback.tb_next
    return False


class expected(suppress):  # noqa: N801  (it is used like the function that it extends)
    """`contextlib.suppress`, but an interruption comes out."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        return super().__exit__(kind, error, traceback) and error is not None and not is_interruption(error)
