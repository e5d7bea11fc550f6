"""Frames: where a `with` statement stands, and by what it is left.

A `with` in a generator or coroutine may end in another thread or task than it began in: whoever closes it, the loop or
the garbage collector. Its frame is the same then, and no other runs in it. So a frame tells which statement it is.

When a `GeneratorExit` ends the body of an `async with`, an async generator was closed at its `yield`, by `aclose()` or
the loop, or a coroutine was dropped, by `close()` or the garbage collector. In the first case its end may await, in the
second it may not: that would be a `RuntimeError`. The traceback tells them apart: the error has come through nothing
but async generators that stood at a `yield`. What is not recognized counts as dropped.

A dropped coroutine whose own clean-up calls `aclose()` looks like the first case: there an await fails.
"""

from __future__ import annotations

import sys
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from opcode import opmap
from types import FrameType, TracebackType
from typing import Final

__all__ = ["may_await", "statement"]

_CAN_BE_CLOSED: Final = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR
_RESUME: Final = opmap.get("RESUME")
_AFTER_YIELD: Final = 1


def statement() -> FrameType | None:
    """Return the frame of the `with` whose begin or end calls this, if it can be closed; None for a plain function.

    What was entered through an `ExitStack` belongs to the frame that uses the stack.
    """
    frame = sys._getframe(1).f_back
    while frame is not None and frame.f_globals.get("__name__") == "contextlib":
        frame = frame.f_back
    return frame if frame is not None and frame.f_code.co_flags & _CAN_BE_CLOSED else None


def may_await(error: GeneratorExit) -> bool:
    """Whether the end of an `async with` may await, whose body ended by that error."""
    traceback = error.__traceback__
    while traceback is not None and _stands_at_yield(traceback):
        traceback = traceback.tb_next
    return traceback is None


def _stands_at_yield(traceback: TracebackType) -> bool:
    code, at = traceback.tb_frame.f_code, traceback.tb_lasti
    if not code.co_flags & CO_ASYNC_GENERATOR:
        return False
    # It would go on with a RESUME, which says behind what it stands: a `yield` or an `await`. That is the instruction
    # in the traceback from Python 3.13 on, before that the next one.
    resume = at if code.co_code[at] == _RESUME else at + 2
    return code.co_code[resume] == _RESUME and code.co_code[resume + 1] & 3 == _AFTER_YIELD
