"""The client for asyncio: nodes in, synchronizers out; the twin of `client`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Self, TypeVar, overload

import redis
import redis.asyncio

import redsync
from redsync._core.events import Event
from redsync._core.frames import may_await
from redsync._core.timing import Timing
from redsync._drivers.aio import AioRunner
from redsync._drivers.nodes import Node
from redsync.any_client import AnyClient

if TYPE_CHECKING:
    from redsync._facades.exclusive_async import AsyncExclusiveLock

__all__ = ["AsyncClient"]

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")


class AsyncClient(AnyClient[AioRunner]):
    """Makes synchronizers over N independent Redis masters, for asyncio.

    All its synchronizers share one connection per node, one maintenance task and one identity; no thread is started.
    It belongs to the event loop that first uses it: use one client per loop, close it before the loop ends, best with
    `async with`, which also waits a moment for the first connections. Without that the first operation does.

    Args:
        nodes: A list of URLs (`redis://`, `rediss://`, `unix://`) or `redis.asyncio.Redis` instances, whose settings
            are used but not their connections. Every node must be another server, without replication between them.
            One URL or instance by itself is one node.
        prefix: What the names of all keys begin with.
        lease: As for `Client`; likewise `node_timeout`, `drift_factor` and `restart_guard`.
        listeners: Called with each event, in the loop; they must be quick.

    Raises:
        ConfigurationError: No node, one listed twice, or settings that contradict each other. That two nodes are the
            same server shows when they are connected: then the first operation raises it, or `async with`.
    """

    _REDIS = redis.asyncio.Redis

    def _make_runner(
        self, nodes: list[Node], timing: Timing, listeners: Sequence[Callable[[Event], object]]
    ) -> AioRunner:
        return AioRunner(
            nodes=nodes,
            timing=timing,
            listeners=listeners,
            watchdog=self._WATCHDOG,
            farewell=self._FAREWELL,
            surroundings=self._SURROUNDINGS,
        )

    # Synchronizers.

    def get_lock(
        self,
        name: str | bytes,
        *,
        timeout: float | None = None,
        lease: float | None = None,
        max_hold: float | None = None,
        on_lost: Callable[[redsync.AsyncHold], object] | None = None,
    ) -> redsync.AsyncLock:
        """Return the reentrant lock of that name; all objects of one name are the same lock.

        Args:
            name: 1 to 512 bytes; text is encoded as UTF-8.
            timeout: How long `async with` waits, in seconds; None for ever.
            lease: For how many seconds the nodes keep a claim, unrenewed; None: the client's lease, renewed.
            max_hold: After how many seconds a hold ends although it is renewed; None for no limit.
            on_lost: Called once with the hold when it is lost, in the loop; it must be quick. Without it the body of an
                `async with` is cancelled then.

        Raises:
            ValueError: A name or a number that can't be.
        """
        return redsync.AsyncLock(self, name, timeout=timeout, lease=lease, max_hold=max_hold, on_lost=on_lost)

    def get_mutex(
        self,
        name: str | bytes,
        *,
        timeout: float | None = None,
        lease: float | None = None,
        max_hold: float | None = None,
        on_lost: Callable[[redsync.AsyncHold], object] | None = None,
    ) -> redsync.AsyncMutex:
        """Return a mutex of that name: the canonical Redlock, not reentrant, owned by the object that acquires it.

        With `prefix=""` it shares locks with redlock-py, redlock-rb, node-redlock and go-redsync.

        Args:
            name: 1 to 512 bytes; text is encoded as UTF-8.
            timeout: How long `async with` waits, in seconds; None for ever.
            lease: For how many seconds the nodes keep a claim, unrenewed; None: the client's lease, renewed.
            max_hold: After how many seconds a hold ends although it is renewed; None for no limit.
            on_lost: As for `get_lock`.

        Raises:
            ValueError: A name or a number that can't be.
        """
        return redsync.AsyncMutex(self, name, timeout=timeout, lease=lease, max_hold=max_hold, on_lost=on_lost)

    def get_fair_lock(
        self,
        name: str | bytes,
        *,
        timeout: float | None = None,
        lease: float | None = None,
        max_hold: float | None = None,
        on_lost: Callable[[redsync.AsyncHold], object] | None = None,
    ) -> redsync.AsyncFairLock:
        """Return the fair lock of that name: first come, first served.

        Args:
            name: 1 to 512 bytes; text is encoded as UTF-8.
            timeout: How long `async with` waits, in seconds; None for ever.
            lease: For how many seconds the nodes keep a claim, unrenewed; None: the client's lease, renewed.
            max_hold: After how many seconds a hold ends although it is renewed; None for no limit.
            on_lost: As for `get_lock`.

        Raises:
            ValueError: A name or a number that can't be.
        """
        return redsync.AsyncFairLock(self, name, timeout=timeout, lease=lease, max_hold=max_hold, on_lost=on_lost)

    def get_fenced_lock(
        self,
        name: str | bytes,
        *,
        timeout: float | None = None,
        lease: float | None = None,
        max_hold: float | None = None,
        on_lost: Callable[[redsync.AsyncHold], object] | None = None,
    ) -> redsync.AsyncFencedLock:
        """Return the fenced lock of that name: each acquisition gets a token, higher than all before it.

        The options are those of `get_lock`.

        Raises:
            ValueError: A name or a number that can't be.
        """
        return redsync.AsyncFencedLock(self, name, timeout=timeout, lease=lease, max_hold=max_hold, on_lost=on_lost)

    def get_spin_lock(
        self,
        name: str | bytes,
        *,
        backoff: Callable[[int], float] | None = None,
        timeout: float | None = None,
        lease: float | None = None,
        max_hold: float | None = None,
        on_lost: Callable[[redsync.AsyncHold], object] | None = None,
    ) -> redsync.AsyncSpinLock:
        """Return a lock of that name that tries again and again instead of queueing.

        Args:
            name: 1 to 512 bytes; text is encoded as UTF-8.
            backoff: Called with the number of tries so far, returns for how many seconds to sleep before the next one;
                None: 1 ms to 0.1 s, doubled each time and spread by chance.
            timeout: How long `async with` waits, in seconds; None for ever.
            lease: For how many seconds the nodes keep a claim, unrenewed; None: the client's lease, renewed.
            max_hold: After how many seconds a hold ends although it is renewed; None for no limit.
            on_lost: As for `get_lock`.

        Raises:
            ValueError: A name or a number that can't be.
            TypeError: A `backoff` that is no function.
        """
        return redsync.AsyncSpinLock(
            self, name, backoff=backoff, timeout=timeout, lease=lease, max_hold=max_hold, on_lost=on_lost
        )

    def get_read_write_lock(
        self,
        name: str | bytes,
        *,
        timeout: float | None = None,
        lease: float | None = None,
        max_hold: float | None = None,
        on_lost: Callable[[redsync.AsyncHold], object] | None = None,
    ) -> redsync.AsyncReadWriteLock:
        """Return the read-write lock of that name: many hold its `read_lock`, or one its `write_lock`.

        Args:
            name: 1 to 512 bytes; text is encoded as UTF-8.
            timeout: As for `get_lock`, and so all options; they are those of both locks.
            lease: For how many seconds the nodes keep a claim, unrenewed; None: the client's lease, renewed.
            max_hold: After how many seconds a hold ends although it is renewed; None for no limit.
            on_lost: Called once with the hold when it is lost.

        Raises:
            ValueError: A name or a number that can't be.
        """
        return redsync.AsyncReadWriteLock(self, name, timeout=timeout, lease=lease, max_hold=max_hold, on_lost=on_lost)

    def get_semaphore(
        self,
        name: str | bytes,
        permits: int,
        *,
        timeout: float | None = None,
        lease: float | None = None,
        max_hold: float | None = None,
        on_lost: Callable[[redsync.AsyncPermit], object] | None = None,
    ) -> redsync.AsyncSemaphore:
        """Return the semaphore of that name: at most so many permits at a time; one name is one semaphore.

        Args:
            name: 1 to 512 bytes; text is encoded as UTF-8.
            permits: How many there are, 1 to 10,000; the same number in all programs, until somebody resizes it.
            timeout: How long `async with` waits, in seconds; None for ever.
            lease: For how many seconds the nodes keep a permit, unrenewed; None: the client's lease, renewed.
            max_hold: After how many seconds a permit ends although it is renewed; None for no limit.
            on_lost: As for `get_lock`, with the permit.

        Raises:
            ValueError: A name or a number that can't be.
        """
        return redsync.AsyncSemaphore(
            self, name, permits, timeout=timeout, lease=lease, max_hold=max_hold, on_lost=on_lost
        )

    def get_rate_limiter(
        self,
        name: str | bytes,
        rate: int,
        per: float,
        *,
        timeout: float | None = None,
        restart_guard: float | None = None,
    ) -> redsync.AsyncRateLimiter:
        """Return the rate limiter of that name: at most `rate` successes in any window of `per` seconds.

        Args:
            name: 1 to 512 bytes; text is encoded as UTF-8.
            rate: 1 to 10,000; the same number in all programs.
            per: The length of a window in seconds, at most a year; the same in all programs.
            timeout: How long `async with` waits, in seconds; None for ever.
            restart_guard: For how many seconds at most a node that has just started grants nothing; None: until nothing
                counts any more that it may have forgotten. Lower it only for nodes that write everything to disk.

        Raises:
            ValueError: A name or a number that can't be.
        """
        return redsync.AsyncRateLimiter(self, name, rate, per, timeout=timeout, restart_guard=restart_guard)

    def get_count_down_latch(
        self, name: str | bytes, *, timeout: float = 10.0, keep: float = 86400.0
    ) -> redsync.AsyncCountDownLatch:
        """Return the count-down latch of that name; all objects of one name are the same latch.

        Args:
            name: 1 to 512 bytes; text is encoded as UTF-8.
            timeout: For how many seconds `count_down` goes on while too few nodes answer.
            keep: For how many seconds after its last use the nodes keep it.

        Raises:
            ValueError: A name or a number that can't be.
        """
        return redsync.AsyncCountDownLatch(self, name, timeout=timeout, keep=keep)

    def get_multi_lock(self, *locks: AsyncExclusiveLock, timeout: float | None = None) -> redsync.AsyncMultiLock:
        """Return several locks as one: held all or none, acquired in an order in which nobody deadlocks.

        Args:
            *locks: Locks of any kind, also of other clients; each once.
            timeout: How long `async with` waits for all of them together, in seconds; None for ever.

        Raises:
            ValueError: No lock, one that is given twice, or a timeout that can't be.
            TypeError: Something that is no lock of this flavour.
        """
        return redsync.AsyncMultiLock(locks, timeout=timeout)

    @overload
    def locked(
        self, name: str, *, timeout: float | None = ..., on_busy: Literal["raise"] = ..., **options: Any
    ) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Coroutine[Any, Any, R]]]: ...

    @overload
    def locked(
        self, name: str, *, timeout: float | None = ..., on_busy: Literal["skip"], **options: Any
    ) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Coroutine[Any, Any, R | None]]]: ...

    @overload
    def locked(
        self, name: str, *, timeout: float | None = ..., on_busy: Callable[..., Awaitable[S]], **options: Any
    ) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Coroutine[Any, Any, R | S]]]: ...

    @overload
    def locked(
        self, name: str, *, timeout: float | None = ..., on_busy: Callable[..., S], **options: Any
    ) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Coroutine[Any, Any, R | S]]]: ...

    def locked(
        self,
        name: str,
        *,
        timeout: float | None = None,
        on_busy: str | Callable[..., Any] = "raise",
        **options: Any,
    ) -> Any:
        """Decorate a coroutine function so that it runs under the lock whose name its arguments make.

        `@client.locked("report:{user_id}", timeout=0)` locks `report:7` while `await f(user_id=7)` runs.

        Args:
            name: The lock's name, a template for `str.format`: `{user}` is a parameter, `{user.id}` an attribute of it,
                `{user[0]}` an item of it, `{{` a brace. A template reads nothing but the arguments: an attribute
                that begins with `_` is refused, except `__class__`, `__name__`, `__qualname__` and `__module__`.
            timeout: How long to wait, in seconds; 0 for one try, None for ever.
            on_busy: What to do when others held it all the time: "raise" `AcquireTimeout`, "skip" the call and return
                None, or a function, plain or coroutine, that is called with the same arguments instead.
            **options: As for `get_lock`.

        Raises:
            ValueError: A field that is no parameter or reads what is not public, an invalid template or option, or an
                `on_busy` of no known kind.
            TypeError: Not a coroutine function or method; this client is for asyncio. Also one that is made of a
                generator function, because its body could run without the lock.
        """
        from redsync._facades.decorator import async_locked_decorator

        return async_locked_decorator(self.get_lock, name, timeout, on_busy, options)

    async def inspect(self, name: str | bytes) -> redsync.LockInfo:
        """Return who holds a lock and who waits for it, by what the nodes say now.

        Raises:
            QuorumError: Too few nodes answered.
        """
        return redsync.LockInfo.read(name, await self._runner.run(self._survey(name)))

    # The end.

    async def close(self) -> None:
        """Release what is held in all tasks, stop the maintenance, close the connections; idempotent.

        Tasks that wait for a lock get `ClientClosedError`, as does every operation from now on.
        """
        await self._runner.close()

    async def __aenter__(self) -> Self:
        """Bind the client to the running loop and give the first connections a moment.

        Raises:
            ConfigurationError: Two nodes are the same server.
        """
        await self._runner.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, GeneratorExit) and not (may_await(error) and self._runner.in_task()):
            self._runner.abandon()
        else:
            await self.close()
