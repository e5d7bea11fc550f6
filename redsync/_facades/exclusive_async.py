"""The common base of async locks and mutexes: acquire, release, `async with`, queries; the twin of `exclusive`."""

from __future__ import annotations

from redsync._core.runner import AsyncRunner
from redsync._core.timing import check_timeout
from redsync._facades.claimable import TaskClaimable
from redsync._facades.exclusive import Exclusive
from redsync._facades.hold import AsyncHold

__all__ = ["AsyncExclusiveLock"]


class AsyncExclusiveLock(Exclusive[AsyncRunner, AsyncHold], TaskClaimable[AsyncHold]):
    """Acquire, release and `async with`, for asyncio.

    Cancellation is safe at every await: a cancelled acquire leaves nothing on the nodes, a cancelled release still
    releases the lock.
    """

    _HOLD = AsyncHold

    async def acquire(self, blocking: bool = True, timeout: float | None = -1, *, lease: float | None = None) -> bool:
        """Acquire the lock; return True on success. The contract is that of `threading.RLock`, awaited.

        Args:
            blocking: Wait while another owner holds it; if False, try once.
            timeout: The longest wait in seconds; -1 or None for no limit.
            lease: Seconds for which the nodes keep the claim, unrenewed; None: the lock's or client's lease, the latter
                renewed by the watchdog. A nested acquire inherits the outermost one's renewal.

        Raises:
            QuorumError: Too few nodes answered: at once if not blocking, else at the end of the timeout.
            LeaseLostError: The owner already held the lock, and that hold was lost.
            KeyTypeError: The key holds a value of another type.
            ValueError: The arguments contradict each other, or the lease is invalid.
        """
        return await self._acquire(check_timeout(blocking, timeout), lease) is not None

    async def release(self) -> None:
        """Release one acquisition. A cancelled release still takes effect, without waiting for the nodes.

        Raises:
            NotOwnedError: The owner does not hold the lock; nothing changed.
            LeaseLostError: The owner held the lock, but had lost it.
        """
        await self._runner.run(self._release_steps(self._own(), 1))

    async def locked(self) -> bool:
        """Return True if any owner holds the lock on a quorum of nodes; the answer may be outdated at once.

        Raises:
            QuorumError: Too few nodes answered.
        """
        return await self._runner.run(self._holder_steps()) is not None

    async def extend(self, lease: float | None = None) -> None:
        """Extend the owner's hold now, see `AsyncHold.extend`.

        Raises:
            NotOwnedError: The owner does not hold the lock.
            LeaseLostError: Its hold was lost.
            QuorumError: Too few nodes answered; the hold is unchanged.
        """
        await AsyncHold(self._host, self._own()).extend(lease)

    async def force_release(self) -> bool:
        """Take the lock from its holder and free it for the next waiter; return True if it was held.

        The former holder learns of this at its next renewal, at the latest when its lease ends. Until then two owners
        may believe that they hold the lock. For operators, not for programs.

        Raises:
            QuorumError: Too few nodes answered; those that did have freed it.
            KeyTypeError: The key holds a value of another type.
        """
        return await self._runner.run(self._force_steps())
