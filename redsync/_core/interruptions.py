"""Interruptions: errors that pass through our code but are not its own.

A signal handler runs in the main thread between any two steps of the program, and its error is raised there. Often that
is a `TimeoutError`, which is an `OSError`: code that expects a socket's errors must not take it for one of these. The
errors of system calls have a number (`errno`); an error that Python code raises has none.
"""

from __future__ import annotations

from contextlib import suppress
from types import TracebackType

from redsync.exceptions import RedsyncError

__all__ = ["expected", "is_interruption"]


def is_interruption(error: BaseException) -> bool:
    """Return whether a signal handler raised the caught error, instead of the code that was called."""
    if isinstance(error, RedsyncError):
        return False
    return not isinstance(error, Exception) or (isinstance(error, OSError) and error.errno is None)


class expected(suppress):  # noqa: N801  (it is used like the function that it extends)
    """Suppresses errors like `contextlib.suppress`, but not an interruption."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        return super().__exit__(kind, error, traceback) and error is not None and not is_interruption(error)
