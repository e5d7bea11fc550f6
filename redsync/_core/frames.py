"""Frames: where a `with` statement stands.

A `with` in a generator or coroutine may end in another thread or task than it began in: the one that closes it, the
loop's, or the garbage collector's. Its frame is still the same, and no other `with` runs in that frame. So the frame
identifies the statement.

Without the frame, the end of a generator would release the permit, or the reader's hold, of another statement that uses
the same object: a semaphore that many tasks share, say.
"""

from __future__ import annotations

import contextlib
import sys
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from types import FrameType
from typing import Final

__all__ = ["statement"]

_CONTEXTLIB: Final = vars(contextlib)
_CAN_BE_CLOSED: Final = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR


def statement() -> FrameType | None:
    """Return the frame of the `with` whose enter or exit calls this, if it can be closed; None for a plain function.

    A context manager entered through an `ExitStack` belongs to the frame that uses the stack.
    """
    frame = sys._getframe(1).f_back
    while frame is not None:
        if frame.f_globals is not _CONTEXTLIB:
            return frame if frame.f_code.co_flags & _CAN_BE_CLOSED else None
        frame = frame.f_back
    return None
