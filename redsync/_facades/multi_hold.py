"""The hold of a multi-lock: one hold of each of its locks, to inspect and to pass on as one."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from functools import partial
from inspect import GEN_CLOSED, getgeneratorstate
from typing import Any, Generic, TypeAlias, TypeVar

from redsync._core.effects import Steps, signal
from redsync._core.holds import HoldState
from redsync._core.session import AsyncRunner
from redsync._core.timing import check_timeout
from redsync._facades.claimable import HoldT
from redsync._facades.enterable import note
from redsync._facades.hold import AsyncHold, Cancelling, Entered, Hold
from redsync._protocols.holding import wait_end
from redsync.exceptions import RedsyncError

__all__ = ["AnyMultiHold", "AsyncMultiHold", "AsyncPerforming", "MultiHold", "Performing", "Plan"]
__all__ += ["release_all", "release_rest"]

T = TypeVar("T")

Plan: TypeAlias = Generator[Callable[[], Any], Any, T]
"""Calls of several locks, one after the other, for both flavours: their results, awaited or not, are sent in."""


def release_all(left: list[Any]) -> Plan[None]:
    """Make calls that release something, the last one first; neither errors nor interruptions stop the others.

    Raises:
        RedsyncError: The first error, with the others as notes; an interruption comes before all.
    """
    errors: list[RedsyncError] = []
    try:
        while left:
            try:
                yield left[-1]
            except RedsyncError as error:
                errors.append(error)
            del left[-1]
    except BaseException as error:
        # It may have come before the release began. One that is repeated raises an error and changes nothing.
        yield from release_rest(left, error)
        raise
    while len(errors) > 1:
        note(errors[0], errors.pop(1))
    try:
        if errors:
            raise errors[0]
    finally:
        errors.clear()  # Or this frame and the error would keep each other alive.


def release_rest(left: list[Any], error: BaseException) -> Plan[None]:
    """Make these calls after an error, and raise none: a hold that is lost is over anyway."""
    if not isinstance(error, GeneratorExit):  # Then nothing performs the plan any more.
        with suppress(RedsyncError):
            yield from release_all(left)


class _DroppedError(BaseException):
    """Tells a plan that its caller is gone; a `GeneratorExit` would close the generators inside."""


class Performing:
    """Performs plans in the calling thread."""

    def _perform(self, plan: Plan[T]) -> T:
        """Make the calls of a plan, one after the other; it gets their errors and all interruptions, and cleans up."""
        answer: Any = None
        error: BaseException | None = None
        while True:
            try:
                while True:  # Within the `try`: an interruption can come where a loop repeats.
                    call = plan.send(answer) if error is None else plan.throw(error)
                    answer = error = None
                    try:
                        answer = call()
                    except RedsyncError as problem:
                        error = problem
            except StopIteration as end:
                # No call here: an interruption at its start would leave locks held that no caller knows of.
                return end.value  # type: ignore[no-any-return]
            except BaseException as problem:
                error = None
                if getgeneratorstate(plan) == GEN_CLOSED:
                    raise
                error = problem


class AsyncPerforming:
    """Performs plans in the running task."""

    _runner: AsyncRunner

    async def _perform(self, plan: Plan[T], error: BaseException | None = None) -> T:
        """Make the calls of a plan, as `Performing` does; `error`: what the plan gets first.

        After a cancellation they wait for no node.
        """
        answer, cancelled = None, False
        while True:
            try:
                while True:  # Within the `try`, as there.
                    call = plan.send(answer) if error is None else plan.throw(error)
                    answer = error = None
                    try:
                        if cancelled:
                            self._runner.begin(call)
                        else:
                            answer = await call()
                    except RedsyncError as problem:
                        error = problem
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            except BaseException as problem:
                error = None
                if getgeneratorstate(plan) == GEN_CLOSED:
                    raise
                if isinstance(problem, GeneratorExit):
                    # This coroutine was dropped and can't await, so the client's loop cleans up.
                    self._runner.leave_to_loop(partial(self._finish, plan))
                    raise
                error, cancelled = problem, True

    async def _finish(self, plan: Plan[Any]) -> None:
        with suppress(_DroppedError):
            await self._perform(plan, _DroppedError())


class AnyMultiHold(Entered, Generic[HoldT]):
    """The common base of multi-holds of both flavours: the methods that do not wait."""

    def __init__(self, holds: Sequence[HoldT]) -> None:
        self._holds = tuple(holds)
        self._runner = holds[0]._runner

    @property
    def name(self) -> tuple[str | bytes, ...]:
        """The locks' names, in the order of acquisition."""
        return tuple(hold.name for hold in self._holds)

    @property
    def owner(self) -> tuple[str, ...]:
        """The holder of each lock, as the nodes store it: one owner per client, and one value per mutex."""
        return tuple(hold.owner for hold in self._holds)

    @property
    def fencing_token(self) -> None:
        """None: several locks have no common token."""
        return

    @property
    def lost(self) -> bool:
        """True if one of the holds ended before its release. Asks no node; the end of a lease shows at once."""
        return any(hold.lost for hold in self._holds)

    def remaining(self) -> float:
        """Return for how many seconds all holds stay valid, 0.0 if one is lost or released."""
        return min(hold.remaining() for hold in self._holds)

    def _lost_first(self) -> list[HoldT]:
        return sorted(self._holds, key=lambda hold: not hold.lost)

    def _note_released(self) -> None:
        """Do nothing: each lock has recorded the end of its own part."""

    def _wait_plan(self, timeout: float | None, run: Callable[[Any, Steps[None]], None]) -> Plan[None]:
        """Sleep until one is lost or all are released: wait for the end of one after the other.

        A loss of any wakes the sleeper wherever it sleeps, by steps that `run` performs with a runner.
        """
        timeout = check_timeout(True, timeout)
        deadline = math.inf if timeout is None else self._runner.now() + timeout

        def over() -> bool:
            return hold._released or any(each._state.lost is not None for each in self._holds)

        def ring(_: HoldState) -> None:
            for hold in self._holds:
                with suppress(RedsyncError):  # Its client was closed, which ended the sleep.
                    run(hold._runner, signal(hold._state.end_key))

        try:
            for hold in self._holds:
                hold._state.loss_callbacks.append(ring)
            for hold in self._holds:
                while hold._state.live and not over():
                    # Callbacks that come before `ring` may take long.
                    until = min([deadline, *(each._state.valid_until for each in self._holds if each._state.live)])
                    if (now := hold._runner.now()) >= until:
                        return
                    yield partial(hold._runner.run, wait_end(hold._state, over, now, until - now))
        finally:
            for hold in self._holds:
                if ring in hold._state.loss_callbacks:
                    hold._state.loss_callbacks.remove(ring)

    def _release_plan(self) -> Plan[None]:
        holds: Sequence[Any] = self._holds
        for hold in holds:
            if not hold.lost:
                hold._refuse_released()
        return release_all([hold.release for hold in holds])

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a hold belongs to the process that acquired it: pickle the multi-lock instead")

    def __repr__(self) -> str:
        released = any(hold._released or not (hold._state.live or hold.lost) for hold in self._holds)
        condition = "released" if released else "lost" if self.lost else f"valid for {self.remaining():.1f} s"
        return f"<{type(self).__name__} of {', '.join(map(repr, self.name))}, {condition}>"


# Its methods come from those of AsyncMultiHold: change those, then run `make twins`.
class MultiHold(Performing, AnyMultiHold[Hold]):
    """One acquisition of a multi-lock, from `with multi_lock as hold`, to inspect and to pass on.

    Valid until it is released or one of its locks is lost; then it never becomes valid again. Any thread may call any
    method, even if it does not own the locks.
    """

    def check(self) -> None:
        """Return if all the locks are still held.

        Raises:
            LeaseLostError: One lock was lost.
            NotOwnedError: This hold, or one lock's part of it, was released.
        """
        for hold in self._lost_first():
            hold.check()

    def wait_lost(self, timeout: float | None = None) -> bool:
        """Sleep until one of the locks is lost or all are released; return True if one was lost.

        Args:
            timeout: The longest wait in seconds; None for no limit.
        """
        self._perform(self._wait_plan(timeout, lambda runner, steps: runner.run(steps)))
        return self.lost

    def extend(self, lease: float | None = None) -> None:
        """Extend the hold of each lock now, on a quorum of its nodes; never shortens it.

        The locks are extended one after the other, up to the first error; those before it have been extended.

        Args:
            lease: Seconds from now; None for the lease it was acquired with.

        Raises:
            LeaseLostError: One lock was lost.
            NotOwnedError: This hold was released.
            QuorumError: Too few nodes of one lock answered; its hold is unchanged.
            ValueError: The lease is invalid.
        """
        for hold in self._lost_first():
            hold.extend(lease)

    def release(self) -> None:
        """Release this acquisition of each lock, in reverse order; an error does not stop the others.

        Raises:
            LeaseLostError: One lock was lost; if several were, the error carries the others as notes.
            NotOwnedError: The hold, or one lock's part of it, was already released; nothing changed.
        """
        self._perform(self._release_plan())


class AsyncMultiHold(AsyncPerforming, AnyMultiHold[AsyncHold], Cancelling):
    """One acquisition of an async multi-lock, from `async with multi_lock as hold`.

    Valid until it is released or one of its locks is lost; then it never becomes valid again. Any task of the clients'
    event loop may call any method, even if it does not own the locks.
    """

    def check(self) -> None:
        """Return if all the locks are still held. Not a coroutine: it asks no node. See `MultiHold.check`."""
        for hold in self._lost_first():
            hold.check()

    async def wait_lost(self, timeout: float | None = None) -> bool:
        """Sleep until one of the locks is lost or all are released. See `MultiHold.wait_lost`."""
        await self._perform(self._wait_plan(timeout, lambda runner, steps: runner.run_at_once(steps)))
        return self.lost

    async def extend(self, lease: float | None = None) -> None:
        """Extend the hold of each lock now, on a quorum of its nodes. See `MultiHold.extend`."""
        for hold in self._lost_first():
            await hold.extend(lease)

    async def release(self) -> None:
        """Release this acquisition of each lock. A cancelled release still takes effect. See `MultiHold.release`."""
        await self._perform(self._release_plan())

    def _check_loss(self) -> None:
        """Raise if a hold was lost, even if it was released since."""
        for hold in self._holds:
            hold._check_loss()
