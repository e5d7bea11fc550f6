"""The client for asyncio: nodes in, synchronizers out; the twin of `client`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Any, Literal, ParamSpec, Self, TypeVar, Unpack, overload

import redis
import redis.asyncio

from redsync._drivers.aio import AioRunner
from redsync._facades.claimable import HoldOptions, LockOptions
from redsync._facades.decorator import locked_decorator, wrap_async
from redsync._facades.exclusive import AsyncExclusiveLock
from redsync._facades.fair_lock import AsyncFairLock
from redsync._facades.fenced_lock import AsyncFencedHold, AsyncFencedLock
from redsync._facades.hold import AsyncHold
from redsync._facades.latch import AsyncCountDownLatch
from redsync._facades.lock import AsyncLock
from redsync._facades.lock_info import LockInfo
from redsync._facades.multi_lock import AsyncMultiLock
from redsync._facades.mutex import AsyncMutex
from redsync._facades.permit import AsyncPermit
from redsync._facades.rate_limiter import AsyncRateLimiter, Rates
from redsync._facades.read_write_lock import AsyncReadWriteLock
from redsync._facades.semaphore import AsyncSemaphore
from redsync._facades.spin_lock import AsyncSpinLock
from redsync.any_client import AnyClient

__all__ = ["AsyncClient"]

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")


class AsyncClient(AnyClient[AioRunner]):
    """Makes synchronizers over N independent Redis masters, for asyncio.

    All its synchronizers share one connection per node, one maintenance task and one identity; it starts no thread. It
    belongs to the event loop that first uses it: use one client per loop, and close it before the loop ends, preferably
    by `async with`, which also waits briefly for the first connections. Otherwise the first operation does.

    Args:
        nodes: As for `Client`, with `redis.asyncio.Redis` instances.
        prefix: The start of every key's name.
        lease: As for `Client`; likewise `node_timeout`, `drift_factor`, `restart_guard` and `outage_timeout`.
        listeners: Called with each event, in the event loop: a slow listener delays all tasks, renewals included.

    Raises:
        ConfigurationError: There is no node, one is listed twice, or settings contradict each other. If two nodes prove
            to be the same server, the first operation raises it, or `async with`.
    """

    _REDIS = redis.asyncio.Redis
    _RUNNER = AioRunner

    # Synchronizers.

    def get_lock(
        self,
        name: str | bytes,
        *,
        timeout: float | None = None,
        lease: float | None = None,
        max_hold: float | None = None,
        min_hold: float | None = None,
        on_lost: Callable[[AsyncHold], object] | None = None,
    ) -> AsyncLock:
        """Return the reentrant lock of that name, see `Client.get_lock`.

        `on_lost` is called in the event loop: a slow call delays all tasks. Without it, a loss cancels the body of an
        `async with`.
        """
        return AsyncLock(
            self, name, timeout=timeout, lease=lease, max_hold=max_hold, min_hold=min_hold, on_lost=on_lost
        )

    def get_mutex(
        self,
        name: str | bytes,
        *,
        backoff: Callable[[int], float] | None = None,
        **options: Unpack[LockOptions[AsyncHold]],
    ) -> AsyncMutex:
        """Return a mutex of that name: the canonical Redlock, owned by the object. See `Client.get_mutex`."""
        return AsyncMutex(self, name, backoff=backoff, **options)

    def get_fair_lock(self, name: str | bytes, **options: Unpack[LockOptions[AsyncHold]]) -> AsyncFairLock:
        """Return the fair lock of that name, see `Client.get_fair_lock`."""
        return AsyncFairLock(self, name, **options)

    def get_fenced_lock(self, name: str | bytes, **options: Unpack[LockOptions[AsyncFencedHold]]) -> AsyncFencedLock:
        """Return the fenced lock of that name, see `Client.get_fenced_lock`."""
        return AsyncFencedLock(self, name, **options)

    def get_spin_lock(
        self,
        name: str | bytes,
        *,
        backoff: Callable[[int], float] | None = None,
        **options: Unpack[LockOptions[AsyncHold]],
    ) -> AsyncSpinLock:
        """Return a lock of that name that polls instead of queueing, see `Client.get_spin_lock`."""
        return AsyncSpinLock(self, name, backoff=backoff, **options)

    def get_read_write_lock(self, name: str | bytes, **options: Unpack[LockOptions[AsyncHold]]) -> AsyncReadWriteLock:
        """Return the read-write lock of that name, see `Client.get_read_write_lock`."""
        return AsyncReadWriteLock(self, name, **options)

    def get_semaphore(
        self, name: str | bytes, permits: int, **options: Unpack[HoldOptions[AsyncPermit]]
    ) -> AsyncSemaphore:
        """Return the semaphore of that name: at most `permits` at a time. See `Client.get_semaphore`."""
        return AsyncSemaphore(self, name, permits, **options)

    def get_rate_limiter(
        self,
        name: str | bytes,
        rate: Rates,
        per: float | None = None,
        *,
        timeout: float | None = None,
        restart_guard: float | None = None,
    ) -> AsyncRateLimiter:
        """Return the rate limiter of that name: `rate` successes in any window. See `Client.get_rate_limiter`."""
        return AsyncRateLimiter(self, name, rate, per, timeout=timeout, restart_guard=restart_guard)

    def get_count_down_latch(
        self, name: str | bytes, *, timeout: float = 10.0, keep: float = 86400.0
    ) -> AsyncCountDownLatch:
        """Return the count-down latch of that name, see `Client.get_count_down_latch`."""
        return AsyncCountDownLatch(self, name, timeout=timeout, keep=keep)

    def get_multi_lock(self, *locks: AsyncExclusiveLock, timeout: float | None = None) -> AsyncMultiLock:
        """Return several locks as one: all or none held. See `Client.get_multi_lock`."""
        return AsyncMultiLock(locks, timeout=timeout)

    @overload
    def locked(
        self, name: str, *, on_busy: Literal["raise"] = ..., **options: Unpack[LockOptions[AsyncHold]]
    ) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Coroutine[Any, Any, R]]]: ...

    @overload
    def locked(
        self, name: str, *, on_busy: Literal["skip"], **options: Unpack[LockOptions[AsyncHold]]
    ) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Coroutine[Any, Any, R | None]]]: ...

    @overload
    def locked(
        self, name: str, *, on_busy: Callable[..., Awaitable[S]], **options: Unpack[LockOptions[AsyncHold]]
    ) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Coroutine[Any, Any, R | S]]]: ...

    @overload
    def locked(
        self, name: str, *, on_busy: Callable[..., S], **options: Unpack[LockOptions[AsyncHold]]
    ) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Coroutine[Any, Any, R | S]]]: ...

    def locked(
        self,
        name: str,
        *,
        on_busy: str | Callable[..., Any] = "raise",
        **options: Unpack[LockOptions[AsyncHold]],
    ) -> Any:
        """Decorate a coroutine function: it runs under a lock that its arguments name. See `Client.locked`.

        `on_busy` may also be a coroutine function.

        Raises:
            ValueError: As for `Client.locked`.
            TypeError: The decorated object is not a coroutine function or method, because this client is for asyncio;
                or it was made of a generator function, because its body could run without the lock.
        """
        return locked_decorator(wrap_async, self.get_lock, name, on_busy, options)

    async def inspect(self, name: str | bytes) -> LockInfo:
        """Return a lock's holders and waiters, according to the nodes now. See `Client.inspect`."""
        return LockInfo.read(name, await self._runner.run(self._survey(name)))

    async def inspect_all(self, pattern: str | bytes = "*", *, limit: int = 1000) -> list[LockInfo]:
        """Return what `inspect` does, for each name that matches. See `Client.inspect_all`."""
        tallies = await self._runner.run(self._survey_all(pattern, limit))
        return [LockInfo.read(name, tally) for name, tally in tallies.items()]

    async def force_release(self, name: str | bytes, owner: str) -> bool:
        """Take a hold of any kind from one owner; return True if it had one. See `Client.force_release`."""
        return await self._runner.run(self._break(name, owner))

    # The end.

    async def close(self) -> None:
        """Release the holds of all tasks, stop the maintenance, close the connections. See `Client.close`."""
        await self._runner.close()

    async def __aenter__(self) -> Self:
        """Bind the client to the running loop and wait briefly for the first connections.

        Raises:
            ConfigurationError: Two nodes are the same server.
        """
        await self._runner.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, GeneratorExit):
            # A dropped coroutine can't await, and looks like a generator that is closed.
            self._runner.abandon()
        else:
            await self.close()
