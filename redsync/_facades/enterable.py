"""Objects for `with` statements: they know their open statements, and release at the end of each.

A `with` in a generator or coroutine may end in another thread or task than it began in: the one that closes it, the
loop's, or the garbage collector's. Its frame is still the same, and statements of one frame end in reverse order. So
the frame identifies the statement. The owner identifies a statement in a plain function.

Without the frame, the end of a generator would release the hold of another statement of the same object: the permit of
another request, or the lock of the thread that closes the generator, whose body would continue without it.
"""

from __future__ import annotations

import contextlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from types import FrameType, TracebackType
from typing import Final, Generic, Literal, NamedTuple, TypeVar

from redsync._core.holds import Owner
from redsync._core.session import AsyncRunner, Runner, RunnerT_co
from redsync._facades.hold import AnyHold, Cancelling, Entered
from redsync.exceptions import LeaseLostError, NotOwnedError, RedsyncError

__all__ = ["Enterable", "Statement", "TaskEnterable", "ThreadEnterable", "note", "statement"]

_CONTEXTLIB: Final = vars(contextlib)
_WITH_METHODS: Final = {"__enter__", "__exit__", "__aenter__", "__aexit__"}
_CAN_BE_CLOSED: Final = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR

EnteredT = TypeVar("EnteredT", bound=Entered)
TaskEnteredT = TypeVar("TaskEnteredT", bound=Cancelling)


class Statement(NamedTuple):
    """The `with` that enters or ends.

    Attributes:
        frame: Its frame, if that can be closed; None for a plain function. A context manager entered through an
            `ExitStack`, or by a plain `__enter__`, belongs to the frame that uses that.
        via: The caller of enter or exit: the "with" itself, a "method" of another context manager, or an exit "stack".
    """

    frame: FrameType | None
    via: Literal["with", "method", "stack"]


def statement() -> Statement:
    """Return the `with` whose enter or exit calls this."""
    frame = sys._getframe(1).f_back  # None if C code calls, such as `atexit`
    via: Literal["with", "method", "stack"] = "with"
    while frame is not None:
        if frame.f_globals is _CONTEXTLIB:
            via = "stack" if via == "with" else via
        elif frame.f_code.co_name in _WITH_METHODS:
            via = "method" if via == "with" else via
            if frame.f_code.co_flags & _CAN_BE_CLOSED:
                break  # It may have its own `with`.
        else:
            break
        frame = frame.f_back
    return Statement(frame if frame is not None and frame.f_code.co_flags & _CAN_BE_CLOSED else None, via)


def note(error: BaseException, problem: BaseException) -> None:
    """Add a problem and its notes as notes to the error that propagates instead, if it does not tell that itself."""
    with suppress(Exception):  # The error may refuse notes, as a frozen dataclass does.
        for line in (f"redsync: {problem}", *getattr(problem, "__notes__", ())):
            if line != f"redsync: {error}":
                error.add_note(line)


def _hurry(hold: Entered | None, error: BaseException | None) -> None:
    """Let the release after an interruption, or in a closed generator, wait only for the nodes, not for `min_hold`."""
    if error is not None and not isinstance(error, Exception) and isinstance(hold, AnyHold):
        # Only the last release of the hold: the body of an outer `with` may catch the interruption, and continue.
        hold._state.hurried = hold._state.count == 1 and not hold._released


def _concerns_closer(problem: RedsyncError, hold: Entered | None) -> bool:
    """Return True if a problem at the end of a `with` must be raised in a closed generator, where Python drops notes.

    A hold released earlier, by the body or because its task or client ended, is not such a problem.
    """
    return isinstance(problem, LeaseLostError) or (hold is None and isinstance(problem, NotOwnedError))


def _alike(holds: Iterable[EnteredT], ended: Statement) -> list[EnteredT]:
    """Return those of the holds that the `with` may have entered.

    The end of an exit stack, which may have been passed on, ends no `with` that stands in code, nor the reverse.
    """
    return [hold for hold in holds if hold._entered_via == ended.via or "method" in (hold._entered_via, ended.via)]


class Enterable(ABC, Generic[RunnerT_co, EnteredT]):
    """An object for `with` statements that knows the holds of its open statements."""

    _runner: RunnerT_co
    _entered: dict[EnteredT, None]
    """The holds of all open statements, latest last. Each change is one step, so threads need no lock."""
    _latest: dict[FrameType | Owner | None, EnteredT]
    """The latest by place, unless a `with` has ended there since; so a search among all is rarely needed."""

    def _enter(self, hold: EnteredT, begun: Statement) -> None:
        """Record the hold that a `with` returned; its place is the frame if another owner may end it there."""
        hold._entered_by = owner = self._runner.owner()
        hold._entered_at = place = begun.frame or owner
        hold._entered_via = begun.via
        self._latest[place] = hold
        self._entered[hold] = None

    def _innermost(self, ended: Statement) -> EnteredT | None:
        """Return the hold of the `with` that ends; None if no `with` acquired what ends here.

        It may have been entered elsewhere, as by an exit stack that was passed on.
        """
        owner = self._runner.owner()
        for hold in self._entered_here(ended.frame or owner, ended):
            if hold._is_left_by(owner):
                return hold
        everyone = list(self._entered)[::-1]
        mine = [hold for hold in everyone if hold._entered_by is owner]
        others = [hold for hold in everyone if self._may_end(hold)]
        passed_on = [hold for hold in others if hold._entered_via != "with"]
        # Finally those that began otherwise than they end, as by `__enter__()` and `stack.push()`.
        likely = *_alike(mine, ended), *_alike(passed_on, ended), *mine, *others
        return next((hold for hold in likely if hold._is_left_by(owner)), None)

    def _entered_here(self, place: FrameType | Owner | None, ended: Statement) -> list[EnteredT]:
        """Return the holds that the `with` may have entered at a place, innermost first, or only that one."""
        latest = self._latest.get(place)
        if latest is not None and (found := _alike((latest,), ended)):
            return found
        return _alike((hold for hold in reversed(list(self._entered)) if hold._entered_at is place), ended)

    def _may_end(self, hold: EnteredT) -> bool:  # noqa: ARG002  (other kinds ask it)
        """Return whether the owner may end this hold's `with`, which it did not enter.

        False if it holds an acquisition of the lock, which is released instead.
        """
        return True

    def _forget(self, hold: EnteredT | None) -> None:
        if hold is None or (place := hold._entered_at) is None:
            return
        self._entered.pop(hold, None)
        self._latest.pop(place, None)
        hold._note_released()
        hold._entered_at = None  # else hold and frame would be a cycle


class ThreadEnterable(Enterable[Runner, EnteredT]):
    """The end of a `with` statement, for threads."""

    @abstractmethod
    def _leave(self, hold: EnteredT | None) -> None:
        """Release the hold of a `with`; a second call finishes an interrupted one."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Release the acquisition of `__enter__`, unless it was released inside.

        Raises:
            LeaseLostError: The hold was lost.
            NotOwnedError: The lock's `release()` released it inside; or this is the child of a fork.
            ClientClosedError: The client was closed inside.

        If the body raised, its own error propagates and carries the problem as a note. If a generator was closed, in
        any thread, its `close()` raises a loss.
        """
        hold = None
        try:
            hold = self._innermost(statement())
            _hurry(hold, error)
            self._leave(hold)
        except RedsyncError as problem:
            if error is None or (isinstance(error, GeneratorExit) and _concerns_closer(problem, hold)):
                raise
            note(error, problem)
        except BaseException as interruption:
            # Perhaps before the release began: Python does not call `__exit__` again.
            with suppress(RedsyncError):
                hold = hold or self._innermost(statement())
                _hurry(hold, interruption)
                self._leave(hold)
            raise


class TaskEnterable(Enterable[AsyncRunner, TaskEnteredT]):
    """The end of an `async with` statement."""

    @abstractmethod
    async def _leave(self, hold: TaskEnteredT | None) -> None:
        """Release the hold of an `async with`."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Release the acquisition of `__aenter__`, unless it was released inside.

        Raises:
            LeaseLostError: The hold was lost, and the body was cancelled for that reason or ended without an error.
            NotOwnedError: The lock's `release()` released it inside.
            ClientClosedError: The client was closed inside.

        If the body raised for another reason, its own error propagates and carries the problem as a note. So does a
        cancellation from outside, even together with the loss. If an async generator was closed, or a coroutine was
        dropped, the release is sent without waiting for the nodes; its `aclose()` or `close()` raises a known loss.
        """
        if not isinstance(error, GeneratorExit):
            await self._end(self._innermost(statement()), error)
        elif (hold := self._entered_in(statement())) is not None:
            # A dropped coroutine can't await, and looks like a generator that is closed.
            self._runner.begin(partial(self._end, hold, error))

    async def _end(self, hold: TaskEnteredT | None, error: BaseException | None) -> None:
        closed = isinstance(error, GeneratorExit)
        told = hold is not None and hold._close_scope(error)
        _hurry(hold, error)
        try:
            await self._leave(hold)
            if hold is not None and told:
                # The body released the lost hold, and hid the loss.
                hold._check_loss()
        except RedsyncError as problem:
            if error is None or (told and (not closed or _concerns_closer(problem, hold))):
                raise
            note(error, problem)

    def _entered_in(self, ended: Statement) -> TaskEnteredT | None:
        """Return the hold of the innermost `async with` in the same frame, or the only one that may end elsewhere.

        It may have been entered elsewhere, by a function that fills an exit stack. Any task may close a generator, so
        who closes it tells nothing about which of several holds ends.
        """
        if here := self._entered_here(ended.frame, ended):
            return here[0]
        passed_on = [hold for hold in _alike(list(self._entered), ended) if hold._entered_via != "with"]
        return passed_on[0] if len(passed_on) == 1 else None
