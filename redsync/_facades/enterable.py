"""What can be used in a `with` statement: it knows whose statements are open, and where, and gives back at their end.

A statement in a generator or coroutine may end in another thread or task than it began in, so it is known by its frame,
see `frames`; that of a plain function by its owner.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import suppress
from functools import partial
from types import FrameType, TracebackType
from typing import Generic, TypeVar

from redsync._core.frames import may_await, statement
from redsync._core.interruptions import is_interruption
from redsync._core.ownership import Owner
from redsync._core.runner import AsyncRunner, Runner, RunnerT_co
from redsync._facades.hold import Cancelling, Entered
from redsync.exceptions import LeaseLostError, NotOwnedError, RedsyncError

__all__ = ["Enterable", "TaskEnterable", "ThreadEnterable", "note"]

EnteredT = TypeVar("EnteredT", bound=Entered)
TaskEnteredT = TypeVar("TaskEnteredT", bound=Cancelling)


def note(error: BaseException, problem: BaseException) -> None:
    """Note a problem on the error that comes out in its place, and with it what is noted on the problem itself."""
    for line in (f"redsync: {problem}", *getattr(problem, "__notes__", ())):
        error.add_note(line)


def _concerns_closer(problem: RedsyncError, hold: Entered | None) -> bool:
    """Whether to tell whoever closes a generator what the end of its `with` says: nobody sees a note there.

    Not what had been given back before, by the body, or because its task or client has ended.
    """
    return isinstance(problem, LeaseLostError) or (hold is None and isinstance(problem, NotOwnedError))


class Enterable(ABC, Generic[RunnerT_co, EnteredT]):
    """What can be used in a `with` statement: it knows which holds such statements have open."""

    _runner: RunnerT_co
    _entered: dict[FrameType | Owner | None, list[EnteredT]]
    """Innermost last, by the frame of the statement if another owner may end it, else by its owner: so no list is
    touched by two at the same time."""

    def _enter(self, hold: EnteredT, frame: FrameType | None) -> None:
        """Note the hold that a `with` in that frame gives out."""
        hold._entered_by = owner = self._runner.owner()
        hold._entered_at = frame or owner
        self._entered.setdefault(hold._entered_at, []).append(hold)

    def _entered_in(self, place: FrameType | Owner | None) -> EnteredT | None:
        """Return the hold of the innermost `with` in that frame, or of that owner in plain functions."""
        holds = self._entered.get(place)
        return holds[-1] if holds else None

    def _innermost(self, frame: FrameType | None) -> EnteredT | None:
        """Return the hold of the `with` that ends there; None in the child of a fork, which has none."""
        owner = self._runner.owner()
        # One that was entered elsewhere, as by a stack that was handed on, is the owner's latest.
        return self._entered_in(frame or owner) or next(reversed(self._entered_of(owner)), None)

    def _entered_of(self, owner: Owner) -> list[EnteredT]:
        """Return the holds that the owner's statements have open, wherever they stand; innermost last."""
        return [hold for holds in list(self._entered.values()) for hold in holds if hold._entered_by is owner]

    def _forget(self, hold: EnteredT | None) -> None:
        if hold is None or hold._entered_at is None:
            return
        holds = self._entered.get(hold._entered_at, [])
        if hold in holds:
            holds.remove(hold)
        hold._note_released()
        if not holds:
            self._entered.pop(hold._entered_at, None)
        hold._entered_at = None  # the frame knows the hold


class ThreadEnterable(Enterable[Runner, EnteredT]):
    """The end of a `with` statement, for threads."""

    @abstractmethod
    def _leave(self, hold: EnteredT | None) -> None:
        """Release what a `with` acquired; the second time, do only what is left to be done."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Release the acquisition of `__enter__`, unless it was released inside.

        Raises:
            LeaseLostError: It was lost.
            NotOwnedError: It was released inside by `release()` of the lock; or this is the child of a fork.
            ClientClosedError: The client was closed inside.

        If the body raised, its own error comes out, and carries a note instead. If it is that of a generator that is
        closed, in whatever thread, a loss comes out of `close()`.
        """
        hold = None
        try:
            hold = self._innermost(statement())
            self._leave(hold)
        except BaseException as problem:
            if isinstance(problem, RedsyncError) and not is_interruption(problem):
                if error is None or (isinstance(error, GeneratorExit) and _concerns_closer(problem, hold)):
                    raise
                note(error, problem)
                return
            # Interrupted, perhaps before the release began: nobody will call `__exit__` again.
            with suppress(RedsyncError):
                self._leave(hold or self._innermost(statement()))
            raise


class TaskEnterable(Enterable[AsyncRunner, TaskEnteredT]):
    """The end of an `async with` statement."""

    @abstractmethod
    async def _leave(self, hold: TaskEnteredT | None) -> None:
        """Release what an `async with` acquired."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Release the acquisition of `__aenter__`, unless it was released inside.

        Raises:
            LeaseLostError: It was lost, and the body cancelled for that reason or ended without an error.
            NotOwnedError: It was released inside by `release()` of the lock.
            ClientClosedError: The client was closed inside.

        If the body raised for another reason, its own error comes out, and carries a note instead. So does a
        cancellation from outside, also one that comes together with the loss. If it is that of an async generator that
        is closed, in whatever task, a loss comes out of `aclose()`. If it is that of a coroutine that is dropped, where
        nothing can be awaited, the loop does all this in its next turns.
        """
        frame, closed = statement(), isinstance(error, GeneratorExit)
        if isinstance(error, GeneratorExit) and not (may_await(error) and self._runner.in_task()):
            if (dropped := self._entered_in(frame)) is not None:
                self._runner.leave_to_loop(partial(self._leave_dropped, dropped))
            return
        hold = self._innermost(frame)
        told = hold._close_scope(error) if hold is not None else closed
        try:
            await self._leave(hold)
            if hold is not None and told:
                # The body had released what was lost, and hidden that.
                hold._check_loss()
        except RedsyncError as problem:
            if error is None or (told and (not closed or _concerns_closer(problem, hold))):
                raise
            note(error, problem)

    async def _leave_dropped(self, hold: TaskEnteredT) -> None:
        hold._close_scope(None)
        await self._leave(hold)
