"""The semaphore: a limited number of permits at a time, over independent nodes; for threads and for asyncio.

```python
semaphore = client.get_semaphore("licences", 5)
with semaphore as permit:  # waits; the body never runs without a permit
    run_solver()
```

`redsync._protocols.slot_claims` and `semaphore` make the decisions; this module has only the interface.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Unpack

from redsync._core.effects import Steps
from redsync._core.holds import HoldState
from redsync._core.keys import encode_name
from redsync._core.permits import MAX_PERMITS, Limit, SlotKeys
from redsync._core.session import AnyHost, AsyncRunner, Runner, RunnerT_co, Session
from redsync._core.timing import check_timeout, whole
from redsync._facades.claimable import Claimable, HoldOptions, HoldT, TaskClaimable, ThreadClaimable
from redsync._facades.permit import AsyncPermit, Permit
from redsync._protocols import semaphore as protocol
from redsync._protocols.claims import AcquireRequest
from redsync._protocols.holding import give_back
from redsync._protocols.semaphore import PermitHolder

__all__ = ["AsyncSemaphore", "Semaphore"]


def _check_permits(permits: int) -> int:
    if (number := whole(permits, MAX_PERMITS)) is None:
        raise ValueError(f"a semaphore has 1 to {MAX_PERMITS:,} permits, not {permits!r}")
    return number


class _Counted(Claimable[RunnerT_co, HoldT]):
    """The common base of semaphores of both flavours: the methods that do not wait."""

    _KIND = protocol.SEMAPHORE

    def __init__(
        self, host: AnyHost[RunnerT_co], name: str | bytes, permits: int, **options: Unpack[HoldOptions[HoldT]]
    ) -> None:
        self._set_up(host, name, **options)
        self._claimant = self._runner.new_owner
        self._permits = _check_permits(permits)
        self._keys = SlotKeys.of(host.prefix, encode_name(name))
        self._pool = protocol.Pool(name, self._keys, Limit(self._permits))

    def _request(self, timeout: float | None, lease: float | None, count: int) -> AcquireRequest:
        limit = self._pool.limit.permits
        if (number := whole(count, limit)) is None:
            raise ValueError(
                f"semaphore {self.name!r} has {limit} permits: n must be an integer up to that, not {count!r}"
            )
        return super()._request(timeout, lease, number)

    def _acquire_steps(self, session: Session, request: AcquireRequest, now: float) -> Steps[HoldState | None]:
        return protocol.acquire(session, request, self._pool.limit, now)

    @property
    def _limit(self) -> int | None:
        return self._pool.limit.permits

    def _undo_steps(self, state: HoldState, _request: AcquireRequest) -> Steps[None]:
        return give_back(self._runner.session, state)

    def _leave_steps(self, hold: HoldT) -> Steps[None]:
        return hold._let_go_steps()

    def _release_steps(self, count: int) -> Steps[None]:
        if (number := whole(count)) is None:
            raise ValueError(f"n must be a positive number of permits, not {count!r}")
        return protocol.release_latest(self._runner.session, self._pool, number, self._runner.now())

    def _resize_steps(self, permits: int) -> Steps[None]:
        permits = _check_permits(permits)
        return protocol.resize(self._runner.session, self._pool, self._claimant(), permits)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), **self._options), (self._host, self._name, self._permits)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} of {self._pool.limit.permits} permits>"


# Its methods come from those of AsyncSemaphore: change those, then run `make twins`.
class Semaphore(_Counted[Runner, Permit], ThreadClaimable[Permit]):
    """A semaphore over all nodes of a client: at most `permits` permits at any instant, no matter which nodes fail.

    A permit is valid while its `remaining()` is positive; at most `permits` valid permits exist, as long as clock rates
    differ by at most `drift_factor`. Each permit is a slot that a quorum of nodes keeps. So the bound is exact over
    independent nodes, where a counter on each node would admit more. Permits of a crashed process are free within one
    lease. Waiters are served in order of arrival, and waiters for few permits do not overtake a waiter for many.
    Permits belong to no thread.

    After a resize to fewer permits no holder loses one, and none is granted until the smaller limit holds.

    Algorithm: Redlock for each of P slots, and Lamport's bakery for the queue. Made by `Client.get_semaphore`.
    """

    _HOLD = Permit

    def acquire(
        self, blocking: bool = True, timeout: float | None = None, n: int = 1, *, lease: float | None = None
    ) -> Permit | None:
        """Acquire one permit or `n`, all or none; None if too few are free. Like `threading.Semaphore.acquire`.

        Args:
            blocking: Wait until the permits are free; if False, try once.
            timeout: The longest wait in seconds; None or -1 for no limit.
            n: The number of permits, from 1 to all. The result is one `Permit`.
            lease: Seconds for which the nodes keep the permit, unrenewed; None: the semaphore's or client's lease, the
                latter renewed by the watchdog.

        Raises:
            QuorumError: Too few nodes answered in the only try, or for the shorter of `timeout` and `outage_timeout`.
            ConfigurationError: The nodes have another number of permits than this object, or fewer than `n`.
            KeyTypeError: The key holds a value of another type.
            ValueError: The arguments contradict each other, or the lease is invalid.
        """
        return self._acquire(check_timeout(blocking, timeout), lease, n)

    def release(self, n: int = 1) -> None:
        """Release `n` of this client's permits of this semaphore, the latest first, in any thread.

        Permits of an open `with` come last. A permit for several is reduced if `n` does not cover it.

        Raises:
            OverReleaseError: The client has fewer than `n`; nothing was released.
            LeaseLostError: One of them was lost; the others were released.
            ValueError: `n` is less than 1.
        """
        self._runner.give_back(self._release_steps(n))

    def available(self) -> int:
        """Return how many permits are free, according to a quorum of nodes; the answer may be outdated at once.

        Raises:
            QuorumError: Too few nodes answered.
            KeyTypeError: The key holds a value of another type.
            ConfigurationError: The name is that of a rate limiter.
        """
        return self._runner.run(protocol.available(self._runner.session, self._pool, self._claimant()))

    def permits(self) -> int:
        """Return the total number of permits, according to a quorum of nodes.

        Raises:
            QuorumError: Too few nodes answered.
            KeyTypeError: The key holds a value of another type.
            ConfigurationError: The name is that of a rate limiter.
        """
        return self._runner.run(protocol.limit_of(self._runner.session, self._pool, self._claimant()))

    def resize(self, permits: int) -> None:
        """Change the number of permits on a quorum of nodes, for all clients, even those made with another number.

        A larger number takes effect at once. A smaller one takes effect as permits are released: no holder loses one.
        Of several resizes at the same time, one wins everywhere.

        Raises:
            QuorumError: Too few nodes answered; if any did, the new number may still take effect.
            KeyTypeError: The key holds a value of another type.
            ConfigurationError: The name is that of a rate limiter.
            ValueError: `permits` is not a number from 1 to 10,000.
        """
        self._runner.run(self._resize_steps(permits))

    def holders(self) -> tuple[PermitHolder, ...]:
        """Return the holders of permits, according to a quorum of nodes, in the order in which their leases end.

        Raises:
            QuorumError: Too few nodes answered.
            KeyTypeError: The key holds a value of another type.
            ConfigurationError: The name is that of a rate limiter.
        """
        return self._runner.run(protocol.holders_of(self._runner.session, self._pool, self._claimant()))


class AsyncSemaphore(_Counted[AsyncRunner, AsyncPermit], TaskClaimable[AsyncPermit]):
    """A semaphore over all nodes of a client: at most `permits` permits at any instant, no matter which nodes fail.

    The guarantees are those of `Semaphore`. Cancellation is safe at every await: a cancelled acquire leaves nothing on
    the nodes, a cancelled release still releases the permit. Made by `AsyncClient.get_semaphore`.
    """

    _HOLD = AsyncPermit

    async def acquire(
        self, blocking: bool = True, timeout: float | None = None, n: int = 1, *, lease: float | None = None
    ) -> AsyncPermit | None:
        """Acquire one permit or `n`, all or none; None if too few are free. See `Semaphore.acquire`."""
        return await self._acquire(check_timeout(blocking, timeout), lease, n)

    async def release(self, n: int = 1) -> None:
        """Release `n` of this client's permits, the latest first, in any task. See `Semaphore.release`."""
        await self._runner.run(self._release_steps(n))

    async def available(self) -> int:
        """Return how many permits are free, according to a quorum of nodes. See `Semaphore.available`."""
        return await self._runner.run(protocol.available(self._runner.session, self._pool, self._claimant()))

    async def permits(self) -> int:
        """Return the total number of permits, according to a quorum of nodes. See `Semaphore.permits`."""
        return await self._runner.run(protocol.limit_of(self._runner.session, self._pool, self._claimant()))

    async def resize(self, permits: int) -> None:
        """Change the number of permits, for all clients. See `Semaphore.resize`."""
        await self._runner.run(self._resize_steps(permits))

    async def holders(self) -> tuple[PermitHolder, ...]:
        """Return the holders of permits, according to a quorum of nodes. See `Semaphore.holders`."""
        return await self._runner.run(protocol.holders_of(self._runner.session, self._pool, self._claimant()))
