"""What async lock and async mutex have in common: acquire, release, `async with`, looks. The twin of `exclusive`."""

from __future__ import annotations

from redsync._core.runner import AsyncRunner
from redsync._core.timing import check_timeout
from redsync._facades.claimable import TaskClaimable
from redsync._facades.exclusive import Exclusive
from redsync._facades.hold import AsyncHold

__all__ = ["AsyncExclusiveLock"]


class AsyncExclusiveLock(Exclusive[AsyncRunner, AsyncHold], TaskClaimable[AsyncHold]):
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
            lease: Seconds for which the nodes keep the claim, unrenewed; None: the lock's or client's lease, the latter
                renewed by the watchdog. A nested acquire inherits the outermost one's renewal.

        Raises:
            QuorumError: Too few nodes answered: at once if not blocking, else when the timeout is over.
            LeaseLostError: The owner held the lock already, and that hold was lost.
            KeyTypeError: The key holds a value of another type.
            ValueError: Arguments that contradict each other, or a lease that no claim can live on.
        """
        return await self._acquire(check_timeout(blocking, timeout), lease) is not None

    async def release(self) -> None:
        """Give one acquisition back. A release that is cancelled does so all the same, without waiting for the nodes.

        Raises:
            NotOwnedError: The owner does not hold the lock; nothing was changed.
            LeaseLostError: The owner held the lock, and lost it before.
        """
        await self._runner.run(self._release_steps(self._own(), 1))

    async def locked(self) -> bool:
        """Return whether anyone holds the lock on a quorum of nodes; an instant later that may have changed.

        Raises:
            QuorumError: Too few nodes answered to tell.
        """
        return await self._runner.run(self._holder_steps()) is not None

    async def extend(self, lease: float | None = None) -> None:
        """Lengthen the owner's hold now, see `AsyncHold.extend`.

        Raises:
            NotOwnedError: The owner does not hold the lock.
            LeaseLostError: Its hold was lost.
            QuorumError: Too few nodes answered; the hold stays as it was.
        """
        await AsyncHold(self._host, self._own()).extend(lease)

    async def force_release(self) -> bool:
        """Take the lock away from its holder, for the next waiter; return whether it was held.

        The former holder learns of it from its next renewal, at the latest when its lease ends: until then two may
        believe. For operators, not for programs.

        Raises:
            QuorumError: Too few nodes answered; those that did have freed it.
            KeyTypeError: The key holds a value of another type.
        """
        return await self._runner.run(self._force_steps())
