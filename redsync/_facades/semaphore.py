"""The semaphore: a limited number of permits at a time, over independent nodes; for threads and for asyncio.

```python
semaphore = client.get_semaphore("licences", 5)
with semaphore as permit:  # waits; the body never runs without a permit
    run_solver()
```

The decisions are in `redsync._protocols`, `slot_claims` and `semaphore`; this module has only what callers touch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from redsync._core.effects import Steps
from redsync._core.holds import HoldState
from redsync._core.keys import encode_name
from redsync._core.limits import MAX_PERMITS, Limit
from redsync._core.ownership import Owner
from redsync._core.runner import AnyHost, AsyncRunner, Runner, RunnerT_co, Session
from redsync._core.slots import SlotKeys
from redsync._core.timing import check_timeout
from redsync._facades.claimable import Claimable, HoldT, TaskClaimable, ThreadClaimable
from redsync._facades.permit import AsyncPermit, Permit, PermitHolder
from redsync._protocols import semaphore as protocol
from redsync._protocols.acquire_requests import AcquireRequest, Outcome
from redsync._protocols.holding import give_back

__all__ = ["AsyncSemaphore", "Semaphore"]


def _check_permits(permits: int) -> int:
    if not isinstance(permits, int) or isinstance(permits, bool) or not 1 <= permits <= MAX_PERMITS:
        raise ValueError(f"a semaphore has 1 to {MAX_PERMITS:,} permits, not {permits!r}")
    return permits


class _Counted(Claimable[RunnerT_co, HoldT]):
    """What semaphores of both flavours have in common: everything that needs no waiting."""

    def __init__(
        self,
        host: AnyHost[RunnerT_co],
        name: str | bytes,
        permits: int,
        *,
        timeout: float | None = None,
        lease: float | None = None,
        max_hold: float | None = None,
        on_lost: Callable[[HoldT], object] | None = None,
    ) -> None:
        self._set_up(host, timeout, lease, max_hold, on_lost)
        self._permits = _check_permits(permits)
        self._pool = protocol.Pool(name, SlotKeys.of(host.prefix, encode_name(name)), Limit(permits))

    @property
    def name(self) -> str | bytes:
        """The semaphore's name, as it was given."""
        return self._pool.name

    def _request(self, timeout: float | None, lease: float | None, count: int) -> AcquireRequest:
        self._check_count(count)
        session = self._runner.session
        return AcquireRequest(
            self._pool.name,
            protocol.SEMAPHORE,
            self._pool.keys,
            self._runner.new_owner(),
            Outcome(),
            self._lease if lease is None else session.timing.check_lease(lease),
            timeout,
            self._max_hold,
            self._tell_lost,
            count,
        )

    def _check_count(self, count: int) -> None:
        limit = self._pool.limit.permits
        if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= limit:
            raise ValueError(
                f"semaphore {self.name!r} has {limit} permits: n is a number from 1 to that, not {count!r}"
            )

    def _acquire_steps(self, session: Session, request: AcquireRequest, now: float) -> Steps[HoldState | None]:
        return protocol.acquire(session, request, self._pool.limit, now)

    @property
    def _limit(self) -> int | None:
        return self._pool.limit.permits

    def _undo_steps(self, state: HoldState, _count: int) -> Steps[None]:
        return give_back(self._runner.session, state)

    def _may_release(self, _hold: HoldT) -> bool:
        # Permits belong to nobody: another thread or task has another permit.
        return False

    def _release_steps(self, count: int) -> Steps[None]:
        if not isinstance(count, int) or count < 1:
            raise ValueError(f"n is a number of permits from 1 on, not {count!r}")
        return protocol.release_latest(self._runner.session, self._pool, count, self._runner.now())

    def _resize_steps(self, permits: int) -> Steps[None]:
        permits = _check_permits(permits)
        return protocol.resize(self._runner.session, self._pool, self._nobody(), permits)

    def _nobody(self) -> Owner:
        # A look has an owner of its own: a refused release is sent again behind it, but not behind its owner's next
        # claim.
        return self._runner.new_owner()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._host, self._pool.name, self._permits), {"options": self._options()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(self._host, self._pool.name, self._permits, **state["options"])  # type: ignore[misc]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} of {self._pool.limit.permits} permits>"


# Its methods come from those of AsyncSemaphore: change those, then run `make twins`.
class Semaphore(_Counted[Runner, Permit], ThreadClaimable[Permit]):
    """A semaphore over all nodes of a client: at most `permits` permits at any instant, whichever nodes fail.

    A permit is believed while its `remaining()` is positive; at most `permits` of these exist, as long as clocks run at
    rates within `drift_factor`. Each permit is a slot that a quorum of nodes keeps, so the bound is exact over
    independent nodes, where a counter on each node would admit more. Permits of a crashed process come back within one
    lease. Waiters are served in the order in which they came, and a waiter for many permits is not overtaken by waiters
    for few. Permits belong to no thread.

    After a resize to fewer permits nobody loses one, and nobody gets one before the smaller number is kept.

    Algorithm: Redlock for each of P slots, and Lamport's bakery for the line. Made by `Client.get_semaphore`.
    """

    _HOLD = Permit

    def acquire(
        self, blocking: bool = True, timeout: float | None = None, n: int = 1, *, lease: float | None = None
    ) -> Permit | None:
        """Take a permit, or `n` at once, all or none; None if there was no room. As `threading.Semaphore.acquire`.

        Args:
            blocking: Whether to wait while others have the permits.
            timeout: The longest wait in seconds; None or -1 for no limit.
            n: How many permits, from 1 to all there are. They are one `Permit`.
            lease: Seconds for which the nodes keep the permit, unrenewed; None: the semaphore's or client's lease, the
                latter renewed by the watchdog.

        Raises:
            QuorumError: Too few nodes answered: at once if not blocking, else when the timeout is over.
            ConfigurationError: The nodes know another number of permits than this program, or fewer than `n`.
            KeyTypeError: The key holds a value of another type.
            ValueError: Arguments that contradict each other, or a lease that no claim can live on.
        """
        return self._acquire(check_timeout(blocking, timeout), lease, n)

    def release(self, n: int = 1) -> None:
        """Give back `n` of the permits that this client has of this semaphore, the latest first, in any thread.

        Permits that a `with` will give back come last. A permit for several is reduced if `n` does not cover it.

        Raises:
            OverReleaseError: The client has fewer than `n`; nothing was given back.
            LeaseLostError: One of them was lost before; the others are given back all the same.
            ValueError: `n` is less than 1.
        """
        self._runner.give_back(self._release_steps(n))

    def available(self) -> int:
        """Return how many permits are free, according to a quorum of nodes; an instant later that may have changed.

        Raises:
            QuorumError: Too few nodes answered to tell.
            KeyTypeError: The key holds a value of another type.
        """
        return self._runner.run(protocol.available(self._runner.session, self._pool, self._nobody()))

    def permits(self) -> int:
        """Return how many permits there are, according to a quorum of nodes.

        Raises:
            QuorumError: Too few nodes answered to tell.
            KeyTypeError: The key holds a value of another type.
        """
        return self._runner.run(protocol.limit_of(self._runner.session, self._pool, self._nobody()))

    def resize(self, permits: int) -> None:
        """Change the number of permits on a quorum of nodes; all clients learn it, whatever number they were made with.

        A larger number takes effect at once. A smaller one takes effect as permits come back: nobody loses one. Of
        several resizes at the same time, one wins everywhere.

        Raises:
            QuorumError: Too few nodes answered; if any did, the new number may come into force nevertheless.
            KeyTypeError: The key holds a value of another type.
            ValueError: `permits` is not from 1 to 10,000.
        """
        self._runner.run(self._resize_steps(permits))

    def holders(self) -> tuple[PermitHolder, ...]:
        """Return the holders of permits, according to a quorum of nodes; those whose lease ends first come first.

        Raises:
            QuorumError: Too few nodes answered to tell.
            KeyTypeError: The key holds a value of another type.
        """
        found = self._runner.run(protocol.holdings(self._runner.session, self._pool, self._nobody()))
        return tuple(map(PermitHolder.of, found))


class AsyncSemaphore(_Counted[AsyncRunner, AsyncPermit], TaskClaimable[AsyncPermit]):
    """A semaphore over all nodes of a client: at most `permits` permits at any instant, whichever nodes fail.

    The guarantees are those of `Semaphore`. Cancelling is safe at every await: a cancelled acquire leaves nothing on
    the nodes, a cancelled release has given the permit back. Made by `AsyncClient.get_semaphore`.
    """

    _HOLD = AsyncPermit

    async def acquire(
        self, blocking: bool = True, timeout: float | None = None, n: int = 1, *, lease: float | None = None
    ) -> AsyncPermit | None:
        """Take a permit, or `n` at once, all or none; None if there was no room. As `threading.Semaphore.acquire`.

        Args:
            blocking: Whether to wait while others have the permits.
            timeout: The longest wait in seconds; None or -1 for no limit.
            n: How many permits, from 1 to all there are. They are one `AsyncPermit`.
            lease: Seconds for which the nodes keep the permit, unrenewed; None: the semaphore's or client's lease, the
                latter renewed by the watchdog.

        Raises:
            QuorumError: Too few nodes answered: at once if not blocking, else when the timeout is over.
            ConfigurationError: The nodes know another number of permits than this program, or fewer than `n`.
            KeyTypeError: The key holds a value of another type.
            ValueError: Arguments that contradict each other, or a lease that no claim can live on.
        """
        return await self._acquire(check_timeout(blocking, timeout), lease, n)

    async def release(self, n: int = 1) -> None:
        """Give back `n` of the permits that this client has of this semaphore, the latest first, in any task.

        Permits that an `async with` will give back come last. A permit for several is reduced if `n` does not cover it.

        Raises:
            OverReleaseError: The client has fewer than `n`; nothing was given back.
            LeaseLostError: One of them was lost before; the others are given back all the same.
            ValueError: `n` is less than 1.
        """
        await self._runner.run(self._release_steps(n))

    async def available(self) -> int:
        """Return how many permits are free, according to a quorum of nodes; an instant later that may have changed.

        Raises:
            QuorumError: Too few nodes answered to tell.
            KeyTypeError: The key holds a value of another type.
        """
        return await self._runner.run(protocol.available(self._runner.session, self._pool, self._nobody()))

    async def permits(self) -> int:
        """Return how many permits there are, according to a quorum of nodes.

        Raises:
            QuorumError: Too few nodes answered to tell.
            KeyTypeError: The key holds a value of another type.
        """
        return await self._runner.run(protocol.limit_of(self._runner.session, self._pool, self._nobody()))

    async def resize(self, permits: int) -> None:
        """Change the number of permits on a quorum of nodes; all clients learn it, whatever number they were made with.

        A larger number takes effect at once. A smaller one takes effect as permits come back: nobody loses one. Of
        several resizes at the same time, one wins everywhere.

        Raises:
            QuorumError: Too few nodes answered; if any did, the new number may come into force nevertheless.
            KeyTypeError: The key holds a value of another type.
            ValueError: `permits` is not from 1 to 10,000.
        """
        await self._runner.run(self._resize_steps(permits))

    async def holders(self) -> tuple[PermitHolder, ...]:
        """Return the holders of permits, according to a quorum of nodes; those whose lease ends first come first.

        Raises:
            QuorumError: Too few nodes answered to tell.
            KeyTypeError: The key holds a value of another type.
        """
        found = await self._runner.run(protocol.holdings(self._runner.session, self._pool, self._nobody()))
        return tuple(map(PermitHolder.of, found))
