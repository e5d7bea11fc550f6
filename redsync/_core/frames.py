"""Frames: where a `with` statement stands, and how its body ended.

A `with` in a generator or coroutine may end in another thread or task than it began in: the one that closes it, the
loop's, or the garbage collector's. Its frame is still the same, and no other `with` runs in that frame. So the frame
identifies the statement.

A `GeneratorExit` ends the body of an `async with` in two cases. Either an async generator was closed at its `yield`, by
`aclose()` or the loop: then `__aexit__` may await. Or a coroutine was dropped, by `close()` or the garbage collector:
then an await would raise `RuntimeError`. The traceback distinguishes them: in the first case the error came only
through async generators that stood at a `yield`. Any other traceback counts as a dropped coroutine.

A dropped coroutine whose own clean-up calls `aclose()` looks like the first case. There an await fails.
"""

from __future__ import annotations

import contextlib
import sys
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from opcode import opmap
from types import FrameType, TracebackType
from typing import Final

__all__ = ["may_await", "statement"]

_CONTEXTLIB: Final = vars(contextlib)
_CAN_BE_CLOSED: Final = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR
_RESUME: Final = opmap.get("RESUME")
_AFTER_YIELD: Final = 1


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


def may_await(error: GeneratorExit) -> bool:
    """Return whether `__aexit__` may await after that error ended the body of its `async with`."""
    traceback = error.__traceback__
    while traceback is not None and _stands_at_yield(traceback):
        traceback = traceback.tb_next
    return traceback is None


def _stands_at_yield(traceback: TracebackType) -> bool:
    code, at = traceback.tb_frame.f_code, traceback.tb_lasti
    if not code.co_flags & CO_ASYNC_GENERATOR:
        return False
    # The frame's next instruction is a RESUME, which says whether it stands at a `yield` or an `await`. From Python
    # 3.13 on the traceback points at this instruction, in earlier versions at the one before.
    resume = at if code.co_code[at] == _RESUME else at + 2
    return code.co_code[resume] == _RESUME and code.co_code[resume + 1] & 3 == _AFTER_YIELD
