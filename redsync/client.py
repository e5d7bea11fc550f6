"""The client for threads: nodes in, synchronizers out; `client_async` is its twin.

No other module joins facades and drivers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Literal, ParamSpec, Self, TypeVar, Unpack, overload

import redis

from redsync._core.observing import Event
from redsync._core.timing import whole
from redsync._drivers.threads import ThreadRunner
from redsync._facades.claimable import HoldOptions, LockOptions
from redsync._facades.decorator import locked_decorator, wrap
from redsync._facades.exclusive import ExclusiveLock
from redsync._facades.fair_lock import FairLock
from redsync._facades.fenced_lock import FencedHold, FencedLock
from redsync._facades.hold import Hold
from redsync._facades.latch import CountDownLatch
from redsync._facades.lock import Lock
from redsync._facades.lock_info import LockInfo
from redsync._facades.multi_lock import MultiLock
from redsync._facades.mutex import Mutex
from redsync._facades.permit import Permit
from redsync._facades.rate_limiter import RateLimiter, Rates
from redsync._facades.read_write_lock import ReadWriteLock
from redsync._facades.semaphore import Semaphore
from redsync._facades.spin_lock import SpinLock
from redsync.any_client import AnyClient, ClientOptions, Nodes
from redsync.exceptions import ConfigurationError

__all__ = ["Client", "ClientOptions"]

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")


# Its methods come from those of AsyncClient: change those, then run `make twins`.
class Client(AnyClient[ThreadRunner]):
    """Makes synchronizers over N independent Redis masters, for threads.

    All its synchronizers share the connections, one maintenance thread and one identity. Use one client per process,
    shared by all threads. It connects and reconnects automatically, and can be made while all nodes are down: only its
    operations raise errors, until a quorum of the nodes is back.

    Args:
        nodes: A list of URLs (`redis://`, `rediss://`, `unix://`, `redis+sentinel://`, `redis+cluster://`; `valkey` for
            `redis` too) or `redis.Redis` instances; the client uses their settings, not their connections. The nodes
            must be different servers, without replication between them. A single URL or instance needs no list.
        prefix: The start of every key's name.
        lease: Seconds for which nodes keep a claim that the watchdog renews. If the holder crashes, others wait this
            long. At most an hour.
        node_timeout: The longest wait for a node in seconds, while the others have not decided; at most lease / 20.
        drift_factor: The largest difference between the rates of two clocks; 0.01 is 1 %.
        restart_guard: Seconds for which a node takes no part in new grants after it was started, emptied or given other
            data, because it may have forgotten valid claims. It must be at least the longest lease of any client; less
            than this client's lease is refused, except 0. None: the lease, or 0 for a single node with a fixed address.
            Locks with a longer lease are guarded for that long, unless this is 0.
        outage_timeout: The longest wait in seconds while no quorum of nodes answers, for calls without a shorter
            timeout; then `QuorumError`. None: the lease; `math.inf`: no limit. The error comes at once if no quorum
            has ever answered this client, and most nodes refuse the password, a command or the database number, do not
            speak RESP3, or have an untrusted certificate, unless that has expired or is not valid yet. Waits for other
            owners, or for a restart guard, have no such limit.
        max_connections: The most connections per node for threads that ask at the same time; further threads share the
            one of the maintenance thread.
        listeners: Called with each event, in the thread that notices it, or in one that the client has for this: a slow
            listener delays your calls or later events, not renewals.

    Raises:
        ConfigurationError: There is no node, a server is listed twice, or settings contradict each other. The message
            never shows a given node, because it may contain a password.
    """

    _REDIS = redis.Redis
    _RUNNER = ThreadRunner

    def __init__(
        self,
        nodes: Nodes,
        *,
        prefix: str = "redsync:",
        lease: float = 30.0,
        node_timeout: float = 0.25,
        drift_factor: float = 0.01,
        restart_guard: float | None = None,
        outage_timeout: float | None = None,
        max_connections: int = 16,
        listeners: Sequence[Callable[[Event], object]] = (),
    ) -> None:
        if (most := whole(max_connections)) is None:
            raise ConfigurationError(f"max_connections must be a whole number of at least 1, not {max_connections!r}")
        self._more = {"max_connections": most}
        super().__init__(
            nodes,
            prefix=prefix,
            lease=lease,
            node_timeout=node_timeout,
            drift_factor=drift_factor,
            restart_guard=restart_guard,
            outage_timeout=outage_timeout,
            listeners=listeners,
        )
        try:
            self._runner.connect()  # Last, so that an interrupted client is dropped, and ends its thread.
        except BaseException:
            self.close()
            raise

    # Synchronizers.

    def get_lock(
        self,
        name: str | bytes,
        *,
        timeout: float | None = None,
        lease: float | None = None,
        max_hold: float | None = None,
        min_hold: float | None = None,
        on_lost: Callable[[Hold], object] | None = None,
    ) -> Lock:
        """Return the reentrant lock of that name; all objects of one name are the same lock.

        Args:
            name: 1 to 512 bytes; text is encoded as UTF-8.
            timeout: The longest wait of `with` in seconds; None for no limit.
            lease: Seconds for which the nodes keep a claim, unrenewed; None: the client's lease, renewed.
            max_hold: Seconds after which a hold ends even if renewed; None for no limit.
            min_hold: Seconds before which no other owner gets the lock: the last release waits until then. A body that
                ends by an interruption, and an interrupted wait, leave the lock to its lease or to that instant,
                whichever is later.
            on_lost: Called once when the hold is lost, with a new object for it, in the thread whose call notices it,
                or in one that the client has for events: a slow call delays later events, not renewals.

        Raises:
            ValueError: The name or a number is invalid.
            TypeError: The name is no text, `timeout` no number, or `on_lost` no function.
        """
        return Lock(self, name, timeout=timeout, lease=lease, max_hold=max_hold, min_hold=min_hold, on_lost=on_lost)

    def get_mutex(
        self,
        name: str | bytes,
        *,
        backoff: Callable[[int], float] | None = None,
        **options: Unpack[LockOptions[Hold]],
    ) -> Mutex:
        """Return a mutex of that name: the canonical Redlock, non-reentrant, owned by the object that acquires it.

        With `prefix=""` it and the locks of redlock-py, redlock-rb, node-redlock and go-redsync exclude each other.
        With `backoff`, as for `get_spin_lock`, it polls instead of queueing, as those do: for names that they use, too.
        The other options are those of `get_lock`.

        Raises:
            ValueError: The name or a number is invalid.
            TypeError: `backoff` is not a function.
        """
        return Mutex(self, name, backoff=backoff, **options)

    def get_fair_lock(self, name: str | bytes, **options: Unpack[LockOptions[Hold]]) -> FairLock:
        """Return the fair lock of that name: first come, first served.

        The options and errors are those of `get_lock`.
        """
        return FairLock(self, name, **options)

    def get_fenced_lock(self, name: str | bytes, **options: Unpack[LockOptions[FencedHold]]) -> FencedLock:
        """Return the fenced lock of that name: each acquisition gets a token, higher than all before it.

        The options and errors are those of `get_lock`.
        """
        return FencedLock(self, name, **options)

    def get_spin_lock(
        self,
        name: str | bytes,
        *,
        backoff: Callable[[int], float] | None = None,
        **options: Unpack[LockOptions[Hold]],
    ) -> SpinLock:
        """Return a lock of that name that polls instead of queueing.

        `backoff` is called with the number of tries so far, and returns the seconds to sleep before the next. By
        default 1 ms to 0.1 s, doubled each time, with random jitter. The other options are those of `get_lock`.

        Raises:
            ValueError: The name or a number is invalid.
            TypeError: `backoff` is not a function.
        """
        return SpinLock(self, name, backoff=backoff, **options)

    def get_read_write_lock(self, name: str | bytes, **options: Unpack[LockOptions[Hold]]) -> ReadWriteLock:
        """Return the read-write lock of that name: many owners hold its `read_lock`, or one its `write_lock`.

        The options and errors are those of `get_lock`; the options apply to both locks.
        """
        return ReadWriteLock(self, name, **options)

    def get_semaphore(self, name: str | bytes, permits: int, **options: Unpack[HoldOptions[Permit]]) -> Semaphore:
        """Return the semaphore of that name: at most `permits` at a time; all objects of one name are the same.

        `permits` is a number from 1 to 10,000, the same in all programs, until a resize. The options are those of
        `get_lock` without `min_hold`, for a permit instead of a hold.

        Raises:
            ValueError: The name or a number is invalid.
        """
        return Semaphore(self, name, permits, **options)

    def get_rate_limiter(
        self,
        name: str | bytes,
        rate: Rates,
        per: float | None = None,
        *,
        timeout: float | None = None,
        restart_guard: float | None = None,
    ) -> RateLimiter:
        """Return the rate limiter of that name: at most `rate` successes in any window of `per` seconds.

        Args:
            name: 1 to 512 bytes; text is encoded as UTF-8.
            rate: 1 to 10,000; the same number in all programs. Or several rates, each with its window:
                `[(10, 1), (1000, 3600)]`; each success counts for all of them.
            per: The length of a window in seconds, at most a year; the same in all programs. None for several rates.
            timeout: The longest wait of `with` in seconds; None for no limit.
            restart_guard: The most seconds for which a newly started node grants nothing; None: until no success that
                it may have forgotten counts. Lower it only for nodes that write everything to disk.

        Raises:
            ValueError: The name or a number is invalid.
        """
        return RateLimiter(self, name, rate, per, timeout=timeout, restart_guard=restart_guard)

    def get_count_down_latch(
        self, name: str | bytes, *, timeout: float = 10.0, keep: float = 86400.0
    ) -> CountDownLatch:
        """Return the count-down latch of that name; all objects of one name are the same latch.

        Args:
            name: 1 to 512 bytes; text is encoded as UTF-8.
            timeout: Seconds for which `count_down` retries while too few nodes answer.
            keep: Seconds for which the nodes keep the latch after its last use; the same in all programs.

        Raises:
            ValueError: The name or a number is invalid.
        """
        return CountDownLatch(self, name, timeout=timeout, keep=keep)

    def get_multi_lock(self, *locks: ExclusiveLock, timeout: float | None = None) -> MultiLock:
        """Return several locks as one: all or none held, acquired in an order that can't deadlock.

        Args:
            *locks: Locks of any kind, even of other clients; each name once.
            timeout: The longest wait of `with` for all of them together in seconds; None for no limit.

        Raises:
            ValueError: No lock is given, a name is given twice, or the timeout is invalid.
            TypeError: An argument is not a lock of this flavour.
        """
        return MultiLock(locks, timeout=timeout)

    @overload
    def locked(
        self, name: str, *, on_busy: Literal["raise"] = ..., **options: Unpack[LockOptions[Hold]]
    ) -> Callable[[Callable[P, R]], Callable[P, R]]: ...

    @overload
    def locked(
        self, name: str, *, on_busy: Literal["skip"], **options: Unpack[LockOptions[Hold]]
    ) -> Callable[[Callable[P, R]], Callable[P, R | None]]: ...

    @overload
    def locked(
        self, name: str, *, on_busy: Callable[..., S], **options: Unpack[LockOptions[Hold]]
    ) -> Callable[[Callable[P, R]], Callable[P, R | S]]: ...

    def locked(
        self,
        name: str,
        *,
        on_busy: str | Callable[..., Any] = "raise",
        **options: Unpack[LockOptions[Hold]],
    ) -> Any:
        """Decorate a function: it runs under a lock that its arguments name.

        `@client.locked("report:{user_id}", timeout=0)` locks `report:7` while `f(user_id=7)` runs.

        Args:
            name: The lock's name, a template for `str.format`: `{user}` is a parameter, `{user.id}` its attribute,
                `{user[0]}` its item, `{{` a brace. A template reads only the arguments, and no attribute that begins
                with `_`, except `__class__`, `__name__`, `__qualname__` and `__module__`.
            on_busy: The result of a call if other owners held the lock throughout: "raise" `AcquireTimeout`, "skip" the
                call and return None, or a function to call with the same arguments instead.
            **options: As for `get_lock`; `timeout`: the longest wait in seconds, 0 for one try, None for no limit.

        Raises:
            ValueError: A field is not a parameter or reads a private attribute, the template or an option is invalid,
                or `on_busy` is unknown.
            TypeError: The decorated object is not a function or method; or it is a coroutine function, because this
                client is for threads; or a generator function or `@contextmanager`, because its body would run without
                the lock.
        """
        return locked_decorator(wrap, self.get_lock, name, on_busy, options)

    def inspect(self, name: str | bytes) -> LockInfo:
        """Return a lock's holders and waiters, according to the nodes now.

        Raises:
            QuorumError: Too few nodes answered.
            ValueError: The name is invalid.
        """
        return LockInfo.read(name, self._runner.run(self._survey(name)))

    def inspect_all(self, pattern: str | bytes = "*", *, limit: int = 1000) -> list[LockInfo]:
        """Return what `inspect` does, for each name that matches: what is held, waited for or set, of every kind.

        It scans all keys of each node, a thousand at a time, and asks about one name after the other. So the list is no
        snapshot: it may have a name that is free by now, and lack one that has just been acquired.

        Args:
            pattern: May contain `*`, `?` and `[a-z]`; a backslash before one of them takes away its meaning.
            limit: The most names, the first as sorted.

        Raises:
            QuorumError: Too few nodes answered.
            ValueError: The pattern has no 1 to 512 bytes, or the limit is less than 1.
        """
        tallies = self._runner.run(self._survey_all(pattern, limit))
        return [LockInfo.read(name, tally) for name, tally in tallies.items()]

    def force_release(self, name: str | bytes, owner: str) -> bool:
        """Take a hold from one owner, and from no other; return True if it had one. Frees locks of all kinds, permits.

        The former holder learns of this at its next renewal, at the latest when its lease ends. Until then two owners
        may believe that they hold the lock. For operators, not for programs.

        Args:
            name: 1 to 512 bytes; text is encoded as UTF-8.
            owner: As `Holder.owner` or `hold.owner` has it, or as `redsync ls` and `show` print it: of this library or
                another, in full or shortened, a process `host:pid`, or at least 8 characters of the beginning.

        Raises:
            QuorumError: Too few nodes answered; those that did have freed it.
            ValueError: That may be one of several owners; or the name is invalid.
        """
        return self._runner.run(self._break(name, owner))

    # The end.

    def close(self) -> None:
        """Release the holds of all threads, stop the maintenance, close the connections; idempotent.

        Threads that wait for a lock get `ClientClosedError`, as does every later operation.
        """
        self._runner.close()

    def __enter__(self) -> Self:
        """Return the client, unless it was closed.

        Raises:
            ClientClosedError: It was closed.
        """
        self._runner.require_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
