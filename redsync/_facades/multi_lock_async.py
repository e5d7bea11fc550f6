"""The async multi-lock: several locks as one, all or none, without deadlocks; the twin of `multi_lock`."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from redsync._core.frames import statement
from redsync._core.runner import AsyncRunner
from redsync._core.timing import check_timeout
from redsync._facades.enterable import TaskEnterable
from redsync._facades.exclusive_async import AsyncExclusiveLock
from redsync._facades.hold import AsyncHold
from redsync._facades.multi_attempt import Attempt, Course
from redsync._facades.multi_hold import AsyncMultiHold, do_each_async, release_all_async
from redsync._facades.multi_lock import AnyMultiLock
from redsync.exceptions import AcquireTimeout, RedsyncError

__all__ = ["AsyncMultiLock"]


async def _follow(course: Course) -> None:
    result, error = None, None
    while True:
        try:
            step = course.send(result) if error is None else course.throw(error)
        finally:
            # The error refers to this frame, so the frame must not keep the error.
            error = None
        if step is None:
            return
        lock, steps = step
        try:
            result = await lock._runner.run(steps)
        except RedsyncError as raised:
            error = raised


class AsyncMultiLock(AnyMultiLock[AsyncRunner, AsyncExclusiveLock, AsyncMultiHold], TaskEnterable[AsyncMultiHold]):
    """Several locks as one, for asyncio: all or none held; of any kind, even from different clients.

    The guarantees are those of `MultiLock`. Cancellation is safe at every await: a cancelled acquire leaves nothing on
    the nodes, a cancelled release still releases all locks.

    Made by `AsyncClient.get_multi_lock`.
    """

    _MADE_OF = AsyncExclusiveLock
    _FLAVOUR = "asyncio"

    async def acquire(self, blocking: bool = True, timeout: float | None = -1, *, lease: float | None = None) -> bool:
        """Acquire all locks; return True on success. The contract is that of `threading.RLock`, awaited.

        If one lock is busy, or the call is cancelled, the locks acquired so far are released.

        Args:
            blocking: Wait while other owners hold one of them; if False, try once.
            timeout: The longest wait in seconds, for all of them together; -1 or None for no limit.
            lease: The lease of each lock, as for its own `acquire`.

        Raises:
            QuorumError: Too few nodes of one lock answered: at once if not blocking, else at the end of the timeout.
            LeaseLostError: The owner already held a lock and lost it, or one was lost during the wait for another.
            KeyTypeError: The key of one lock holds a value of another type.
            ConfigurationError: Two of them are one lock, on the same servers under different addresses.
            ValueError: The arguments contradict each other, or the lease is invalid.
        """
        attempt = await self._acquire(check_timeout(blocking, timeout), lease)
        return attempt.busy is None

    async def _acquire(self, timeout: float | None, lease: float | None = None) -> Attempt[AsyncHold]:
        attempt: Attempt[AsyncHold] = Attempt(self._locks, timeout, lease)
        try:
            await _follow(attempt.course())
        except GeneratorExit:
            # The coroutine was dropped: no await is possible any more.
            self._runner.leave_to_loop(partial(self._undo, attempt))
            raise
        except BaseException:
            await self._undo(attempt)
            raise
        if attempt.busy is not None:
            await self._undo(attempt)
        return attempt

    async def _undo(self, attempt: Attempt[AsyncHold]) -> None:
        # Report only the original error: a hold that is lost, or not released on every node, is over anyway.
        with suppress(RedsyncError):
            await release_all_async(self._runner, attempt.won())

    async def release(self) -> None:
        """Release one acquisition of each lock, in reverse order; an error does not stop the others.

        A cancelled release still takes effect.

        Raises:
            NotOwnedError: The owner does not hold all of them; nothing changed.
            LeaseLostError: The owner held them, but had lost one; if several, the error carries the others as notes.
        """
        await release_all_async(self._runner, self._own())

    async def __aenter__(self) -> AsyncMultiHold:
        """Acquire all locks; wait at most for the `timeout` option in total, without limit by default.

        The body is cancelled when one of the holds is lost, unless that lock has an `on_lost` option.

        Raises:
            AcquireTimeout: Other owners held one of them throughout; the error has that lock's name.
            QuorumError: Too few nodes of one lock answered before the timeout.
            LeaseLostError: As for `acquire`.
        """
        attempt = await self._acquire(self._timeout)
        if attempt.busy is not None:
            raise AcquireTimeout(attempt.busy.name, self._timeout or 0.0)
        # No await from here on, so nothing comes between the acquire and its `__aexit__`.
        hold = AsyncMultiHold(attempt.won())
        silent = [part for lock, part in zip(self._locks, hold._holds, strict=True) if lock._on_lost is None]
        hold._watch(self._runner.scope(), [part._state for part in silent])
        self._enter(hold, statement())
        return hold

    async def _leave(self, hold: AsyncMultiHold | None) -> None:
        if hold is None:
            await self.release()
            return
        parts = zip(reversed(self._locks), reversed(hold._holds), strict=True)
        try:
            await do_each_async([partial(lock._leave, part) for lock, part in parts])
        except GeneratorExit:
            # The coroutine was dropped while it waited: the loop releases the rest.
            self._runner.leave_to_loop(partial(self._leave, hold))
            raise
        except BaseException:
            self._forget(hold)
            raise
        self._forget(hold)

    async def locked(self) -> bool:
        """Return True if any owner holds one of the locks on a quorum of its nodes; it may be outdated at once.

        Raises:
            QuorumError: Too few nodes answered.
        """
        for lock in self._locks:
            if await lock.locked():
                return True
        return False

    async def extend(self, lease: float | None = None) -> None:
        """Extend the owner's hold of each lock now, see `AsyncMultiHold.extend`.

        Raises:
            NotOwnedError: The owner does not hold all of them; nothing changed.
            LeaseLostError: One of its holds was lost.
            QuorumError: Too few nodes of one lock answered; its hold is unchanged.
        """
        await AsyncMultiHold(self._own()).extend(lease)

    async def force_release(self) -> bool:
        """Take each lock from its holder and free it for the next waiter; return True if one was held.

        For operators, not for programs, see `AsyncLock.force_release`. The first error ends the call.

        Raises:
            QuorumError: Too few nodes of one lock answered; those that did have freed it.
            KeyTypeError: The key of one lock holds a value of another type.
        """
        return True in [await lock.force_release() for lock in self._locks]
