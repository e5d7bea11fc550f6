"""The hold of a multi-lock: one hold of each of its locks, to inspect and to pass on as one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Generic

from redsync._core.effects import Steps, signal
from redsync._core.holds import HoldState
from redsync._core.session import AsyncRunner
from redsync._core.timing import check_timeout
from redsync._facades.claimable import HoldT
from redsync._facades.enterable import note
from redsync._facades.hold import AsyncHold, Cancelling, Entered, Hold
from redsync._protocols.holding import wait_end
from redsync.exceptions import RedsyncError

__all__ = ["AnyMultiHold", "AsyncMultiHold", "AsyncReleasing", "MultiHold", "Releasing"]


def _raise_first(errors: list[RedsyncError]) -> None:
    """Raise the first error, with the others as notes."""
    if not errors:
        return
    for error in errors[1:]:
        note(errors[0], error)
    try:
        raise errors[0]
    finally:
        errors.clear()  # Or the caller's frame and the error would keep each other alive.


# Its methods come from those of AsyncReleasing: change those, then run `make twins`.
class Releasing:
    """Releases several holds, one after the other, in the calling thread."""

    def _release_rest(self, left: list[Callable[[], Any]], error: BaseException | None = None) -> None:  # noqa: ARG002
        """Perform the calls without an error: a hold that is lost is over anyway."""
        with suppress(RedsyncError):
            self._release_all(left)

    def _release_all(self, left: list[Callable[[], Any]]) -> None:
        """Perform calls that release something, the last one first; neither errors nor interruptions stop the others.

        Raises:
            RedsyncError: The first error, with the others as notes; an interruption comes before all.
        """
        errors: list[RedsyncError] = []
        try:
            while left:
                try:
                    left[-1]()
                except RedsyncError as error:
                    errors.append(error)
                del left[-1]
        except BaseException as error:
            # It may have come before the release began. One that is repeated raises an error and changes nothing.
            self._release_rest(left, error)
            raise
        _raise_first(errors)


class AsyncReleasing:
    """Releases several holds, one after the other, in the running task."""

    _runner: AsyncRunner

    async def _release_rest(self, left: list[Callable[[], Any]], error: BaseException | None = None) -> None:
        """Perform the calls without an error; in the client's loop, if `error` says that this coroutine is dropped."""
        if isinstance(error, GeneratorExit):
            self._runner.leave_to_loop(partial(self._release_rest, left))
            return
        with suppress(RedsyncError):
            await self._release_all(left)

    async def _release_all(self, left: list[Callable[[], Any]]) -> None:
        """Perform calls that release something, as `Releasing` does."""
        errors: list[RedsyncError] = []
        try:
            while left:
                try:
                    await left[-1]()
                except RedsyncError as error:
                    errors.append(error)
                del left[-1]
        except BaseException as error:
            # It may have come before the release began. One that is repeated raises an error and changes nothing.
            await self._release_rest(left, error)
            raise
        _raise_first(errors)


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

    def _refuse_released(self) -> None:
        for hold in self._holds:
            hold._refuse_released()

    # Sleeping until one is lost or all are released: the sleeper waits for the end of one after the other, and a loss
    # of any wakes it wherever it sleeps.

    def _waits(self, timeout: float | None) -> Iterator[tuple[Any, Steps[None]]]:
        """Yield the runner and the steps of each wait, lazily: each begins when the one before it is over."""
        timeout = check_timeout(True, timeout)
        deadline = math.inf if timeout is None else self._runner.now() + timeout

        def over() -> bool:
            return hold._released or any(each._state.lost is not None for each in self._holds)

        for hold in self._holds:
            now = hold._runner.now()
            if hold._state.live and not over():
                yield hold._runner, wait_end(hold._state, over, now, deadline - now)

    @contextmanager
    def _waking(self, run: Callable[[Any, Steps[None]], None]) -> Iterator[None]:
        """Let a loss of any hold wake the sleeper, by steps that `run` performs with a runner."""

        def ring(_: HoldState) -> None:
            for hold in self._holds:
                with suppress(RedsyncError):  # Its client was closed, which ended the sleep.
                    run(hold._runner, signal(hold._state.end_key))

        try:
            for hold in self._holds:
                hold._state.loss_callbacks.append(ring)
            yield
        finally:
            for hold in self._holds:
                if ring in hold._state.loss_callbacks:
                    hold._state.loss_callbacks.remove(ring)

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a hold belongs to the process that acquired it: pickle the multi-lock instead")

    def __repr__(self) -> str:
        released = any(hold._released or not hold._state.count for hold in self._holds)
        condition = "released" if released else "lost" if self.lost else f"valid for {self.remaining():.1f} s"
        return f"<{type(self).__name__} of {', '.join(map(repr, self.name))}, {condition}>"


# Its methods come from those of AsyncMultiHold: change those, then run `make twins`.
class MultiHold(Releasing, AnyMultiHold[Hold]):
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
        with self._waking(lambda runner, steps: runner.run(steps)):
            for runner, steps in self._waits(timeout):
                runner.run(steps)
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
        self._refuse_released()
        self._release_all([hold.release for hold in self._holds])


class AsyncMultiHold(AsyncReleasing, AnyMultiHold[AsyncHold], Cancelling):
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
        with self._waking(lambda runner, steps: runner.run_at_once(steps)):
            for runner, steps in self._waits(timeout):
                await runner.run(steps)
        return self.lost

    async def extend(self, lease: float | None = None) -> None:
        """Extend the hold of each lock now, on a quorum of its nodes. See `MultiHold.extend`."""
        for hold in self._lost_first():
            await hold.extend(lease)

    async def release(self) -> None:
        """Release this acquisition of each lock. A cancelled release still takes effect. See `MultiHold.release`."""
        self._refuse_released()
        await self._release_all([hold.release for hold in self._holds])

    def _check_loss(self) -> None:
        """Raise if a hold was lost, even if it was released since."""
        for hold in self._holds:
            hold._check_loss()
