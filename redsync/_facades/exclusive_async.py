"""What async lock and async mutex have in common: acquire, release, `async with`, looks. The twin of `exclusive`."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import TypeVar

from redsync._core.frames import may_await, statement
from redsync._core.holds import HoldState
from redsync._core.runner import AsyncRunner
from redsync._core.timing import check_timeout
from redsync._facades.enterable import Enterable, concerns_closer, note
from redsync._facades.exclusive import Exclusive
from redsync._facades.hold import AsyncHold, Cancelling
from redsync.exceptions import AcquireTimeout, RedsyncError

__all__ = ["AsyncExclusiveLock", "TaskEnterable"]


EnteredT = TypeVar("EnteredT", bound=Cancelling)


class TaskEnterable(Enterable[AsyncRunner, EnteredT]):
    """The end of an `async with` statement."""

    @abstractmethod
    async def _leave(self, hold: EnteredT | None) -> None:
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
            if error is None or (told and (not closed or concerns_closer(problem, hold))):
                raise
            note(error, problem)

    async def _leave_dropped(self, hold: EnteredT) -> None:
        hold._close_scope(None)
        await self._leave(hold)


class AsyncExclusiveLock(Exclusive[AsyncRunner, AsyncHold], TaskEnterable[AsyncHold]):
    """Acquire, release and `async with`, for asyncio.

    Cancelling is safe at every await: a cancelled acquire leaves nothing on the nodes, a cancelled release has given
    the lock back.
    """

    _HOLD = AsyncHold

    async def acquire(self, blocking: bool = True, timeout: float | None = -1, *, lease: float | None = None) -> bool:
        """Take the lock; return whether it is held now. The contract is that of `threading.RLock`, awaited.

        Args:
            blocking: Whether to wait while others hold it.
            timeout: The longest wait in seconds; -1 or None for no limit.
            lease: For how many seconds the nodes keep the claim, unrenewed; None: the lock's or client's lease, the
                latter renewed by the watchdog. A nested acquire inherits the outermost one's renewal.

        Raises:
            QuorumError: Too few nodes answered: at once when not blocking, else when the timeout is over.
            LeaseLostError: It is held already, and that hold was lost.
            KeyTypeError: The key holds a value of another type.
            ValueError: Arguments that contradict each other, or a lease that no claim can live on.
        """
        return await self._acquire(check_timeout(blocking, timeout), lease) is not None

    async def _acquire(self, timeout: float | None, lease: float | None = None) -> HoldState | None:
        runner, demand = self._runner, self._demand(timeout, lease, 1)
        try:
            state = await runner.run(self._acquire_steps(runner.session, demand, runner.now()))
        except BaseException:
            if demand.receipt.state is not None:
                # Interrupted (KeyboardInterrupt) when the acquire had succeeded: the caller will never know.
                with suppress(RedsyncError):
                    await runner.run(self._release_steps(demand.receipt.state, 1))
            raise
        # A guess for the next time, good enough unguarded: whoever had to queue now asks for a place at once.
        self._crowded = state is None or state.queued
        return state

    async def release(self) -> None:
        """Give one acquisition back. A release that is cancelled does so all the same, without waiting for the nodes.

        Raises:
            NotOwnedError: The owner does not hold it; nothing was changed.
            LeaseLostError: It held it, and lost it before.
        """
        await self._runner.run(self._release_steps(self._own(), 1))

    async def __aenter__(self) -> AsyncHold:
        """Acquire the lock, waiting for its `timeout` option; for ever by default.

        Unless there is an `on_lost` option, the body is cancelled when the hold is lost.

        Raises:
            AcquireTimeout: Others held it all the time.
            QuorumError: Too few nodes answered until the timeout.
        """
        state = await self._acquire(self._timeout)
        if state is None:
            raise AcquireTimeout(self._name, self._timeout or 0.0)
        # Nothing is awaited from here on, so nothing comes between the acquire and the `__aexit__` that goes with it.
        hold = AsyncHold(self._host, state, self._tell_lost)
        if self._on_lost is None:
            hold._open_scope()
        self._enter(hold, statement())
        return hold

    async def _leave(self, hold: AsyncHold | None) -> None:
        if hold is None:
            await self.release()
            return
        try:
            if not hold._released:
                # The body may have released and acquired again.
                await (self.release() if self._may_release(hold) else hold.release())
        finally:
            self._forget(hold)

    async def locked(self) -> bool:
        """Return whether anyone holds the lock on a quorum of nodes; an instant later that may have changed.

        Raises:
            QuorumError: Too few nodes answered to tell.
        """
        return await self._runner.run(self._holder_steps()) is not None

    async def extend(self, lease: float | None = None) -> None:
        """Lengthen the owner's hold now, see `AsyncHold.extend`.

        Raises:
            NotOwnedError: The owner does not hold it.
            LeaseLostError: Its hold was lost.
            QuorumError: Too few nodes answered; the hold stays as it was.
        """
        await AsyncHold(self._host, self._own()).extend(lease)

    async def force_release(self) -> bool:
        """Take the lock away from whoever holds it, for the next waiter; return whether it was held.

        The former holder is told by its next renewal, at the latest when its lease ends: until then two may believe.
        For operators, not for programs.

        Raises:
            QuorumError: Too few nodes answered; those that did have freed it.
            KeyTypeError: The key holds a value of another type.
        """
        return await self._runner.run(self._force_steps())
