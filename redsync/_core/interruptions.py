"""Interruptions: errors that pass through our code but are not its own.

A signal handler runs in the main thread between any two steps of the program, and its error is raised there. Often that
is a `TimeoutError`, which is an `OSError`: code that expects a socket's errors must not take it for one of these. The
traceback distinguishes them. The error of a socket, or of a thread that can't be started, comes through our modules and
those that wrap sockets and threads; the error of a handler comes through the handler.
"""

from __future__ import annotations

from contextlib import suppress
from types import TracebackType
from typing import Final

__all__ = ["expected", "is_interruption"]

_WRAPPERS: Final = frozenset(
    {"asyncio", "fakeredis", "hiredis", "redis", "redsync", "socket", "ssl", "threading", "uvloop"}
    | {"eventlet", "gevent"}  # They may have replaced `socket`.
)


def is_interruption(error: BaseException) -> bool:
    """Return whether a signal handler raised the caught error, instead of the code that was called.

    Call this in the function that caught the error.
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
    """Suppresses errors like `contextlib.suppress`, but not an interruption."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        return super().__exit__(kind, error, traceback) and error is not None and not is_interruption(error)
