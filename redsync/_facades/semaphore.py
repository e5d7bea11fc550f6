"""The semaphore: at most so many permits at a time, over independent nodes; for threads and for asyncio.

```python
semaphore = client.get_semaphore("licences", 5)
with semaphore as permit:  # waits; the body never runs without a permit
    run_solver()
```

The decisions are in `redsync._protocols.bids` and `redsync._protocols.semaphore`; here is only what callers touch.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from redsync._core.effects import Steps
from redsync._core.frames import statement
from redsync._core.holds import HoldState
from redsync._core.interruptions import is_interruption
from redsync._core.keys import encode_name
from redsync._core.limits import MAX_PERMITS, Limit
from redsync._core.ownership import Owner
from redsync._core.runner import AnyHost, AsyncRunner, Runner, RunnerT_co
from redsync._core.slots import SlotKeys
from redsync._core.timing import check_timeout
from redsync._facades.enterable import Enterable, ThreadEnterable
from redsync._facades.exclusive import HoldT, tell_lost
from redsync._facades.exclusive_async import TaskEnterable
from redsync._facades.permit import AsyncPermit, Permit, PermitHolder
from redsync._protocols import semaphore as protocol
from redsync._protocols.bids import Bid
from redsync._protocols.demands import Demand, Receipt
from redsync._protocols.holding import give_back
from redsync.exceptions import AcquireTimeout, RedsyncError

__all__ = ["AsyncSemaphore", "Semaphore"]


def _check_permits(permits: int) -> int:
    if not isinstance(permits, int) or isinstance(permits, bool) or not 1 <= permits <= MAX_PERMITS:
        raise ValueError(f"a semaphore has 1 to {MAX_PERMITS:,} permits, not {permits!r}")
    return permits


class _Counted(Enterable[RunnerT_co, HoldT]):
    """What semaphores of both flavours have in common: all that needs no waiting."""

    _PERMIT: type[HoldT]

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
        self._host = host
        self._permits = _check_permits(permits)
        self._pool = protocol.Pool(name, SlotKeys.of(host.prefix, encode_name(name)), Limit(permits))
        self._timeout = check_timeout(True, timeout)
        self._runner = host.runner
        timing = self._runner.session.timing
        self._lease = None if lease is None else timing.check_lease(lease)
        self._max_hold = None if max_hold is None else timing.check_lease(max_hold, "max_hold")
        self._on_lost = on_lost
        self._tell_lost = None if on_lost is None else partial(tell_lost, partial(self._PERMIT, host), on_lost)
        self._entered = {}

    @property
    def name(self) -> str | bytes:
        """The semaphore's name, as it was given."""
        return self._pool.name

    def _demand(self, timeout: float | None, lease: float | None, wanted: int) -> Demand:
        self._check_count(wanted)
        session, owner = self._runner.session, self._runner.new_owner()
        return Demand(
            self._pool.name,
            protocol.SEMAPHORE,
            self._pool.keys,
            owner,
            Receipt(),
            self._lease if lease is None else session.timing.check_lease(lease),
            timeout,
            self._max_hold,
            self._tell_lost,
            wanted,
            bid=Bid(self._pool.name, owner, wanted, self._pool.limit, session.luck, waits=timeout != 0),
        )

    def _check_count(self, count: int) -> None:
        limit = self._pool.limit.permits
        if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= limit:
            raise ValueError(
                f"semaphore {self.name!r} has {limit} permits: n is a number from 1 to that, not {count!r}"
            )

    def _acquire_steps(self, demand: Demand) -> Steps[HoldState | None]:
        return protocol.acquire(self._runner.session, demand, self._pool.limit, self._runner.now())

    def _release_steps(self, count: int) -> Steps[None]:
        if not isinstance(count, int) or count < 1:
            raise ValueError(f"n is a number of permits from 1 on, not {count!r}")
        return protocol.release_latest(self._runner.session, self._pool, count, self._runner.now())

    def _resize_steps(self, permits: int) -> Steps[None]:
        permits = _check_permits(permits)
        return protocol.resize(self._runner.session, self._pool, self._nobody(), permits)

    def _nobody(self) -> Owner:
        # Whoever looks does so as nobody: a release is sent again behind a look, but not behind its owner's next claim.
        return self._runner.new_owner()

    def __reduce__(self) -> tuple[Any, ...]:
        options = {
            "timeout": self._timeout,
            "lease": self._lease,
            "max_hold": self._max_hold,
            "on_lost": self._on_lost,
        }
        return type(self), (self._host, self._pool.name, self._permits), {"options": options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(self._host, self._pool.name, self._permits, **state["options"])  # type: ignore[misc]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} of {self._pool.limit.permits} permits>"


class Semaphore(_Counted[Any, Permit], ThreadEnterable[Permit]):
    """A semaphore over all nodes of a client: at most so many permits at any instant, whatever nodes fail.

    A permit is believed while its `remaining()` is positive; of those at most `permits` exist, as long as clocks run at
    rates within `drift_factor`. Each permit is a slot that a quorum of nodes keeps, so the bound is exact over
    independent nodes, where a counter on each node would admit more. Permits of a crashed process come back within one
    lease. Who waits is served in the order in which it came, and who waits for many is not overtaken by those who wait
    for few. Permits belong to no thread.

    After it was resized to fewer permits, nobody loses one, and nobody gets one before the smaller number is kept.

    Algorithm: Redlock for each of P slots, and Lamport's bakery for the line. Made by `Client.get_semaphore`.
    """

    _PERMIT = Permit
    _runner: Runner

    def acquire(
        self, blocking: bool = True, timeout: float | None = None, n: int = 1, *, lease: float | None = None
    ) -> Permit | None:
        """Take a permit, or `n` at once, all or none; None when there was no room. As `threading.Semaphore.acquire`.

        Args:
            blocking: Whether to wait while others have them.
            timeout: The longest wait in seconds; None or -1 for no limit.
            n: How many permits, from 1 to all there are. They are one `Permit`.
            lease: For how many seconds the nodes keep it, unrenewed; None: the semaphore's or client's lease, the
                latter renewed by the watchdog.

        Raises:
            QuorumError: Too few nodes answered: at once when not blocking, else when the timeout is over.
            ConfigurationError: The nodes know another number of permits than this program, or fewer than `n`.
            KeyTypeError: The key holds a value of another type.
            ValueError: Arguments that contradict each other, or a lease that no claim can live on.
        """
        return self._acquire(check_timeout(blocking, timeout), lease, n)

    def _acquire(self, timeout: float | None, lease: float | None = None, wanted: int = 1) -> Permit | None:
        demand = self._demand(timeout, lease, wanted)
        try:
            state = self._runner.run(self._acquire_steps(demand))
            return None if state is None else Permit(self._host, state)
        except BaseException:
            if demand.receipt.state is not None:
                # Interrupted when the acquire had succeeded: the caller will never know.
                self._undo(demand.receipt.state)
            raise

    def _undo(self, state: HoldState) -> None:
        # What matters is the interruption; a permit that can't be given back everywhere is gone all the same.
        with suppress(RedsyncError):
            self._runner.give_back(give_back(self._runner.session, state))

    def release(self, n: int = 1) -> None:
        """Give back `n` of the permits that this client has of this semaphore, the latest first, in whatever thread.

        Those that a `with` will give back come last. A permit for several is reduced if `n` does not cover it.

        Raises:
            OverReleaseError: It has not so many; nothing was given back.
            LeaseLostError: One of them was lost before; the others are given back all the same.
            ValueError: `n` is less than 1.
        """
        self._runner.give_back(self._release_steps(n))

    def __enter__(self) -> Permit:
        """Take a permit, waiting for the `timeout` option; for ever by default.

        Raises:
            AcquireTimeout: There was no room all the time.
            QuorumError: Too few nodes answered until the timeout.
            ConfigurationError: The nodes know another number of permits than this program.
        """
        permit = self._acquire(self._timeout)
        if permit is None:
            raise AcquireTimeout(self.name, self._timeout or 0.0)
        try:
            permit._state.entered = True
            self._enter(permit, statement())
        except BaseException:
            # Interrupted: without an `__enter__` that returns there is no `__exit__`.
            self._forget(permit)
            self._undo(permit._state)
            raise
        return permit

    def _leave(self, hold: Permit | None) -> None:
        if hold is None:
            self.release()
            return
        try:
            if not hold._released and not hold._is_being_released():
                hold.release()
        except RedsyncError as error:
            if not is_interruption(error):
                self._forget(hold)
            raise
        self._forget(hold)

    def available(self) -> int:
        """Return how many permits nobody has, by what a quorum of nodes says; an instant later that may have changed.

        Raises:
            QuorumError: Too few nodes answered to tell.
            KeyTypeError: The key holds a value of another type.
        """
        return self._runner.run(protocol.available(self._runner.session, self._pool, self._nobody()))

    def permits(self) -> int:
        """Return how many permits there are, by what a quorum of nodes says.

        Raises:
            QuorumError: Too few nodes answered to tell.
            KeyTypeError: The key holds a value of another type.
        """
        return self._runner.run(protocol.limit_of(self._runner.session, self._pool, self._nobody()))

    def resize(self, permits: int) -> None:
        """Change how many permits there are, on a quorum of nodes; all clients learn it, whatever they were made with.

        More permits can be had at once. Fewer take effect as permits come back: nobody loses one. Of several resizes
        at the same time one wins everywhere.

        Raises:
            QuorumError: Too few nodes answered; it may come into force nevertheless, if any did.
            KeyTypeError: The key holds a value of another type.
            ValueError: `permits` is not from 1 to 10,000.
        """
        self._runner.run(self._resize_steps(permits))

    def holders(self) -> tuple[PermitHolder, ...]:
        """Return who has permits, by what a quorum of nodes says; those whose lease ends first come first.

        Raises:
            QuorumError: Too few nodes answered to tell.
            KeyTypeError: The key holds a value of another type.
        """
        found = self._runner.run(protocol.holdings(self._runner.session, self._pool, self._nobody()))
        return tuple(map(PermitHolder.of, found))


class AsyncSemaphore(_Counted[Any, AsyncPermit], TaskEnterable[AsyncPermit]):
    """A semaphore over all nodes of a client: at most so many permits at any instant, whatever nodes fail.

    The guarantees are those of `Semaphore`. Cancelling is safe at every await: a cancelled acquire leaves nothing on
    the nodes, a cancelled release has given the permit back. Made by `AsyncClient.get_semaphore`.
    """

    _PERMIT = AsyncPermit
    _runner: AsyncRunner

    async def acquire(
        self, blocking: bool = True, timeout: float | None = None, n: int = 1, *, lease: float | None = None
    ) -> AsyncPermit | None:
        """Take a permit, or `n` at once, all or none; None when there was no room. See `Semaphore.acquire`.

        Args:
            blocking: Whether to wait while others have them.
            timeout: The longest wait in seconds; None or -1 for no limit.
            n: How many permits, from 1 to all there are. They are one `AsyncPermit`.
            lease: For how many seconds the nodes keep it, unrenewed; None: the semaphore's or client's lease, the
                latter renewed by the watchdog.

        Raises:
            QuorumError: Too few nodes answered: at once when not blocking, else when the timeout is over.
            ConfigurationError: The nodes know another number of permits than this program, or fewer than `n`.
            KeyTypeError: The key holds a value of another type.
            ValueError: Arguments that contradict each other, or a lease that no claim can live on.
        """
        return await self._acquire(check_timeout(blocking, timeout), lease, n)

    async def _acquire(self, timeout: float | None, lease: float | None = None, wanted: int = 1) -> AsyncPermit | None:
        demand = self._demand(timeout, lease, wanted)
        try:
            state = await self._runner.run(self._acquire_steps(demand))
            return None if state is None else AsyncPermit(self._host, state)
        except BaseException:
            if demand.receipt.state is not None:
                # Interrupted (KeyboardInterrupt) when the acquire had succeeded: the caller will never know.
                with suppress(RedsyncError):
                    await self._runner.run(give_back(self._runner.session, demand.receipt.state))
            raise

    async def release(self, n: int = 1) -> None:
        """Give back `n` of the permits that this client has of this semaphore, the latest first, in whatever task.

        Those that an `async with` will give back come last. A permit for several is reduced if `n` does not cover it.

        Raises:
            OverReleaseError: It has not so many; nothing was given back.
            LeaseLostError: One of them was lost before; the others are given back all the same.
            ValueError: `n` is less than 1.
        """
        await self._runner.run(self._release_steps(n))

    async def __aenter__(self) -> AsyncPermit:
        """Take a permit, waiting for the `timeout` option; for ever by default.

        Unless there is an `on_lost` option, the body is cancelled when the permit is lost.

        Raises:
            AcquireTimeout: There was no room all the time.
            QuorumError: Too few nodes answered until the timeout.
            ConfigurationError: The nodes know another number of permits than this program.
        """
        permit = await self._acquire(self._timeout)
        if permit is None:
            raise AcquireTimeout(self.name, self._timeout or 0.0)
        # Nothing is awaited from here on, so nothing comes between the acquire and the `__aexit__` that goes with it.
        permit._state.entered = True
        if self._on_lost is None:
            permit._open_scope()
        self._enter(permit, statement())
        return permit

    async def _leave(self, hold: AsyncPermit | None) -> None:
        if hold is None:
            await self.release()
            return
        try:
            if not hold._released:
                await hold.release()
        finally:
            self._forget(hold)

    async def available(self) -> int:
        """Return how many permits nobody has, by what a quorum of nodes says; an instant later that may have changed.

        Raises:
            QuorumError: Too few nodes answered to tell.
            KeyTypeError: The key holds a value of another type.
        """
        return await self._runner.run(protocol.available(self._runner.session, self._pool, self._nobody()))

    async def permits(self) -> int:
        """Return how many permits there are, by what a quorum of nodes says.

        Raises:
            QuorumError: Too few nodes answered to tell.
            KeyTypeError: The key holds a value of another type.
        """
        return await self._runner.run(protocol.limit_of(self._runner.session, self._pool, self._nobody()))

    async def resize(self, permits: int) -> None:
        """Change how many permits there are, on a quorum of nodes; see `Semaphore.resize`.

        Raises:
            QuorumError: Too few nodes answered; it may come into force nevertheless, if any did.
            KeyTypeError: The key holds a value of another type.
            ValueError: `permits` is not from 1 to 10,000.
        """
        await self._runner.run(self._resize_steps(permits))

    async def holders(self) -> tuple[PermitHolder, ...]:
        """Return who has permits, by what a quorum of nodes says; those whose lease ends first come first.

        Raises:
            QuorumError: Too few nodes answered to tell.
            KeyTypeError: The key holds a value of another type.
        """
        found = await self._runner.run(protocol.holdings(self._runner.session, self._pool, self._nobody()))
        return tuple(map(PermitHolder.of, found))
