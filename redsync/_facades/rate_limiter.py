"""The rate limiter: at most `rate` successes in any window, over independent nodes; for threads and asyncio.

```python
limiter = client.get_rate_limiter("partner-api", 100, 60)
with limiter:  # waits until one more is allowed
    call_the_partner()
```

`redsync._protocols.rate`, `windows` and `slot_claims` make the decisions; this module has only the interface.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from copy import copy
from functools import partial
from operator import itemgetter
from types import TracebackType
from typing import Any, Generic, Literal, ParamSpec, TypeAlias, TypeVar, overload

from redsync._core.effects import Steps
from redsync._core.keys import encode_name
from redsync._core.permits import MAX_PERMITS, Limit, PermitState, SlotKeys
from redsync._core.session import AnyHost, AsyncRunner, Runner, RunnerT_co
from redsync._core.timing import check_timeout, whole
from redsync._facades.decorator import OnBusy, check_on_busy, wrap, wrap_async
from redsync._protocols import rate as protocol
from redsync._protocols.claims import AcquireRequest
from redsync._protocols.observed import observed
from redsync._protocols.semaphore import Pool, resize
from redsync._protocols.windows import Window, check_guard, check_window
from redsync.exceptions import AcquireTimeout

__all__ = ["AsyncRateLimiter", "AsyncRatePermit", "RateLimiter", "RatePermit", "Rates"]

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")

Rates: TypeAlias = int | Sequence[tuple[int, float]]
"""The successes in a window; or several numbers, each with its window in seconds."""


def _check_rate(rate: int) -> int:
    if (number := whole(rate, MAX_PERMITS)) is None:
        raise ValueError(f"a rate must be an integer from 1 to {MAX_PERMITS:,}, not {rate!r}")
    return number


def _pairs(rate: Rates, per: float | None) -> tuple[tuple[int, float], ...]:
    """Return the rates with their windows, shortest window first.

    Raises:
        ValueError: A number is invalid, there is none, or two have the same window.
    """
    if per is not None and isinstance(rate, list | tuple):
        raise ValueError("per goes with one rate; each of several has its own window, as in [(10, 1), (500, 60)]")
    given: Any = [(rate, per)] if per is not None or isinstance(rate, int) else rate
    several = isinstance(given, list | tuple) and given
    if not (several and all(isinstance(each, list | tuple) and len(each) == 2 for each in given)):
        raise ValueError(f"a limiter has a rate and a window, 10, 1.0, or several: [(10, 1), (500, 60)], not {rate!r}")
    pairs = sorted(((_check_rate(number), check_window(seconds)) for number, seconds in given), key=itemgetter(1))
    if len({seconds for _, seconds in pairs}) < len(pairs):
        raise ValueError(f"each rate of a limiter has another window, not {rate!r}")
    return tuple(pairs)


class _RatePermit(Generic[RunnerT_co]):
    """The common base of permits of both flavours."""

    def __init__(self, runner: RunnerT_co, permits: Sequence[PermitState]) -> None:
        self._runner = runner
        self._permits = permits

    @property
    def id(self) -> str:
        """The permit's unique id, as kept by nodes and shown by `redsync show`."""
        return self._permits[-1].holder

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._permits[-1].name!r}: {self.id}>"


class RatePermit(_RatePermit[Runner]):
    """One success of a rate limiter, from `acquire_permit` or `with`.

    Nothing has to be released: it runs out by itself, when the window is over. It belongs to no thread.
    """

    def cancel(self) -> None:
        """Return the permit: its call, or each of its `n` calls, was not made, so others may call instead at once.

        Never cancel a call that may have been made, such as one without an answer: then a window may have more calls
        than the rate. To cancel again, or after the window, does nothing. It does not wait; nodes out of reach learn of
        it as soon as they are back.

        Raises:
            ClientClosedError: The client is closed, or this process was forked after the acquire. The permit counts
                until its window is over.
        """
        self._runner.give_back(protocol.cancel(self._permits))


class AsyncRatePermit(_RatePermit[AsyncRunner]):
    """One success of an async rate limiter, from `acquire_permit` or `async with`. Like `RatePermit`."""

    def cancel(self) -> None:
        """Return the permit, because its call was not made. See `RatePermit.cancel`. It is no coroutine."""
        self._runner.run_at_once(protocol.cancel(self._permits))


class _Limiter(Generic[RunnerT_co]):
    """The common base of rate limiters of both flavours: the methods that do not wait."""

    _WRAP: Callable[..., Any]
    _runner: RunnerT_co

    def __init__(
        self,
        host: AnyHost[RunnerT_co],
        name: str | bytes,
        rate: Rates,
        per: float | None = None,
        *,
        timeout: float | None = None,
        restart_guard: float | None = None,
    ) -> None:
        self._host = host
        self._name = name
        self._pairs = _pairs(rate, per)
        self._timeout = check_timeout(True, timeout)
        self._restart_guard = restart_guard
        self._runner = host.runner
        timing, guard, raw = self._runner.session.timing, check_guard(restart_guard), encode_name(name)
        # The key of a further window must not be one that another limiter is likely to have. It may be longer than a
        # name.
        keys = (raw, *(b"%b (window %d)" % (raw, number) for number in range(2, len(self._pairs) + 1)))
        self._rates = tuple(
            protocol.Rate(
                Pool(name, SlotKeys(host.prefix, key), Limit(number, max(round(seconds * 1e6), 1))),
                Window(seconds, timing, guard),
            )
            for key, (number, seconds) in zip(keys, self._pairs, strict=True)
        )

    @property
    def name(self) -> str | bytes:
        """The limiter's name, as given."""
        return self._name

    @property
    def rate(self) -> int:
        """The most successes in any window; if there are several rates, that of the shortest window."""
        return self.rates[0][0]

    @property
    def per(self) -> float:
        """The length of that window in seconds."""
        return self.rates[0][1]

    @property
    def rates(self) -> tuple[tuple[int, float], ...]:
        """Each rate, as far as this object knows of changes, with its window in seconds, shortest window first."""
        return tuple((rate.pool.limit.permits, rate.window.per) for rate in self._rates)

    @property
    def _limits(self) -> str:
        return " and ".join(str(rate.pool.limit) for rate in self._rates)

    def _check_count(self, count: int) -> int:
        most = min(number for number, _ in self.rates)
        if (number := whole(count, most)) is None:
            allowed = f"rate limiter {self.name!r} allows {self._limits}"
            raise ValueError(f"{allowed}: n must be an integer from 1 to {most}, not {count!r}")
        return number

    def _acquire_steps(self, timeout: float | None, wanted: int) -> Steps[Sequence[PermitState] | None]:
        wanted = self._check_count(wanted)
        session, owner, keys = self._runner.session, self._runner.new_owner(), self._rates[0].pool.keys
        request = AcquireRequest(
            name=self._name, kind=protocol.RATE, keys=keys, owner=owner, timeout=timeout, holds=wanted
        )
        acquire = partial(protocol.acquire, rates=self._rates)
        if session.observed:
            return observed(session, request, self._runner.now(), acquire, kind="rate_limiter")
        return acquire(session, request, self._runner.now())

    def _available_steps(self) -> Steps[int]:
        return protocol.available(self._runner.session, self._rates, self._runner.new_owner())

    def _retry_after_steps(self, wanted: int) -> Steps[float]:
        wanted = self._check_count(wanted)
        return protocol.retry_after(self._runner.session, self._rates, self._runner.new_owner(), wanted)

    def _set_rate_steps(self, rate: int, per: float | None) -> Steps[None]:
        chosen = [each.pool for each in self._rates if per in (None, each.window.per)]
        if len(chosen) != 1:
            raise ValueError(
                f"rate limiter {self.name!r} allows {self._limits}: per must be one of its windows, not {per!r}"
            )
        return resize(self._runner.session, chosen[0], self._runner.new_owner(), _check_rate(rate))

    def _timed_out(self) -> AcquireTimeout:
        problem = f"rate limiter {self.name!r} allows {self._limits}, and was still used up"
        return AcquireTimeout(self.name, self._timeout or 0.0, problem)

    def _decorator(self, function: Callable[..., Any] | None, timeout: float | None, on_busy: OnBusy) -> Any:
        check_on_busy(on_busy)
        limiter = self
        if timeout is not None:
            limiter = copy(self)
            limiter._timeout, limiter._rates = check_timeout(True, timeout), self._rates
        decorate = partial(self._WRAP, find=lambda: lambda *_, **__: limiter, on_busy=on_busy, what="the limit")
        return decorate if function is None else decorate(function)

    def __reduce__(self) -> tuple[Any, ...]:
        make = partial(type(self), timeout=self._timeout, restart_guard=self._restart_guard)
        return make, (self._host, self.name, self._pairs)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} of {self._limits}>"


# Its methods come from those of AsyncRateLimiter: change those, then run `make twins`.
class RateLimiter(_Limiter[Runner]):
    """A rate limiter over all nodes of a client: at most `rate` successes in any window of `per` seconds.

    The limit holds for any window, no matter when it begins: no counter is ever reset. With several rates a success
    counts for each of them, and a refusal for none. A success counts when `acquire` returns True or `with` is entered.
    Failures do not weaken the limit: dying processes, failures of a minority of the nodes and late commands admit none
    more. Waiters are served in order of arrival, and sleep until their turn may have come. Only `RatePermit.cancel`
    returns a success, neither the end of `with` nor of the client does.

    Algorithm: `rate` slots like those of a semaphore, each kept by a quorum of nodes for `per` and an allowance for the
    round trip and for clocks. Made by `Client.get_rate_limiter`.
    """

    _WRAP = staticmethod(wrap)

    def acquire(self, blocking: bool = True, timeout: float | None = None, n: int = 1) -> bool:
        """Acquire one of the successes that the rate allows, or `n`, all or none; return True on success.

        Args:
            blocking: Wait until the rate allows them; if False, try once.
            timeout: The longest wait in seconds; None or -1 for no limit.
            n: The number of permits to acquire, from 1 to the smallest rate.

        Raises:
            QuorumError: Too few nodes answered in time in the only try, or for the shorter of `timeout` and
                `outage_timeout`.
            ConfigurationError: The nodes have another rate or window for this name.
            KeyTypeError: The key holds a value of another type.
            ValueError: The arguments contradict each other.
        """
        return self.acquire_permit(blocking, timeout, n) is not None

    def acquire_permit(self, blocking: bool = True, timeout: float | None = None, n: int = 1) -> RatePermit | None:
        """Acquire like `acquire`; return a permit, which can be cancelled, or None if the rate does not allow it.

        Arguments and errors are those of `acquire`.
        """
        permits = self._runner.run(self._acquire_steps(check_timeout(blocking, timeout), n))
        return None if permits is None else RatePermit(self._runner, permits)

    def available(self) -> int:
        """Return how many successes the rate has left now, by a quorum of nodes; waiting callers come first.

        Raises:
            QuorumError: Too few nodes answered, or too few may grant anything yet, after a restart.
            ConfigurationError: The nodes have another rate or window for this name.
            KeyTypeError: The key holds a value of another type.
        """
        return self._runner.run(self._available_steps())

    def retry_after(self, n: int = 1) -> float:
        """Return in how many seconds the rate allows `n` more; 0.0 if it does now. Acquires nothing.

        After that wait a caller is refused only if others came meanwhile; current waiters are counted in. The result is
        at most `per`, plus 1 % for clock drift, plus 5 ms. A success may count for longer: if rounds are slow, if its
        process was slow or paused during its acquire, or if a node's clock is slow. Then, and if more callers wait than
        one window serves, a caller that waited for that long may be refused: ask again.

        Raises:
            QuorumError: Too few nodes answered, or too few may grant anything yet, after a restart.
            ConfigurationError: The nodes have another rate or window for this name.
            KeyTypeError: The key holds a value of another type.
            ValueError: `n` is not a number from 1 to the smallest rate.
        """
        return self._runner.run(self._retry_after_steps(n))

    def set_rate(self, rate: int, per: float | None = None) -> None:
        """Change the rate on a quorum of nodes, for all clients, even those made with another number.

        A higher rate takes effect at once. A lower one takes nothing back: the next success comes when the window has
        room for it under the new rate. Of several changes at the same time, one wins everywhere. Nodes keep it
        permanently. A window can't be changed: use another name.

        Args:
            rate: 1 to 10,000 successes.
            per: The window whose rate to change, in seconds, if there are several.

        Raises:
            QuorumError: Too few nodes answered; if any did, the new rate may still take effect.
            ConfigurationError: The nodes have another window for this name, or a semaphore.
            KeyTypeError: The key holds a value of another type.
            ValueError: `rate` is out of range, or no window has that length, or `per` does not say which of several.
        """
        self._runner.run(self._set_rate_steps(rate, per))

    def __enter__(self) -> RatePermit:
        """Acquire one success; wait at most for the `timeout` option, without limit by default.

        Raises:
            AcquireTimeout: The rate did not allow it before the timeout.
            QuorumError: Too few nodes answered for the shorter of that and `outage_timeout`.
            ConfigurationError: The nodes have another rate or window for this name.
        """
        permit = self.acquire_permit(timeout=self._timeout)
        if permit is None:
            raise self._timed_out()
        return permit

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Do nothing: the success counts, whatever the body did."""

    @overload
    def __call__(self, function: Callable[P, R], /) -> Callable[P, R]: ...

    @overload
    def __call__(
        self, *, timeout: float | None = ..., on_busy: Literal["raise"] = ...
    ) -> Callable[[Callable[P, R]], Callable[P, R]]: ...

    @overload
    def __call__(
        self, *, timeout: float | None = ..., on_busy: Literal["skip"]
    ) -> Callable[[Callable[P, R]], Callable[P, R | None]]: ...

    @overload
    def __call__(
        self, *, timeout: float | None = ..., on_busy: Callable[..., S]
    ) -> Callable[[Callable[P, R]], Callable[P, R | S]]: ...

    def __call__(
        self,
        function: Callable[..., Any] | None = None,
        *,
        timeout: float | None = None,
        on_busy: str | Callable[..., Any] = "raise",
    ) -> Any:
        """Decorate a function: each call first acquires one; `@limiter`, or `@limiter(timeout=1, on_busy="skip")`.

        Args:
            function: The function to decorate.
            timeout: The longest wait of a call in seconds; 0 for one try, None for the limiter's `timeout` option.
            on_busy: The result of a call that the rate did not allow in time: "raise" `AcquireTimeout`, "skip" and
                return None, or a function to call with the same arguments instead.

        Raises:
            ValueError: The timeout or `on_busy` is invalid.
            TypeError: The decorated object is not a function or method; or it is a coroutine function, because this
                limiter is for threads; or a generator function or `@contextmanager`, because its body would run without
                the limit.
        """
        return self._decorator(function, timeout, on_busy)


class AsyncRateLimiter(_Limiter[AsyncRunner]):
    """A rate limiter over all nodes of a client: at most `rate` successes in any window of `per` seconds.

    The guarantees are those of `RateLimiter`. Cancellation is safe at every await: a cancelled acquire acquires
    nothing, unless it had already succeeded. Made by `AsyncClient.get_rate_limiter`.
    """

    _WRAP = staticmethod(wrap_async)

    async def acquire(self, blocking: bool = True, timeout: float | None = None, n: int = 1) -> bool:
        """Acquire one of the successes that the rate allows, or `n`, all or none. See `RateLimiter.acquire`."""
        return await self.acquire_permit(blocking, timeout, n) is not None

    async def acquire_permit(
        self, blocking: bool = True, timeout: float | None = None, n: int = 1
    ) -> AsyncRatePermit | None:
        """Acquire like `acquire`; return a permit, which can be cancelled. See `RateLimiter.acquire_permit`."""
        permits = await self._runner.run(self._acquire_steps(check_timeout(blocking, timeout), n))
        return None if permits is None else AsyncRatePermit(self._runner, permits)

    async def available(self) -> int:
        """Return how many successes the rate has left now. See `RateLimiter.available`."""
        return await self._runner.run(self._available_steps())

    async def retry_after(self, n: int = 1) -> float:
        """Return in how many seconds the rate allows `n` more; 0.0 if it does now. See `RateLimiter.retry_after`."""
        return await self._runner.run(self._retry_after_steps(n))

    async def set_rate(self, rate: int, per: float | None = None) -> None:
        """Change the rate on a quorum of nodes, for all clients. See `RateLimiter.set_rate`."""
        await self._runner.run(self._set_rate_steps(rate, per))

    async def __aenter__(self) -> AsyncRatePermit:
        """Acquire one success; wait at most for the `timeout` option. See `RateLimiter.__enter__`."""
        permit = await self.acquire_permit(timeout=self._timeout)
        if permit is None:
            raise self._timed_out()
        return permit

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Do nothing: the success counts, whatever the body did."""

    @overload
    def __call__(self, function: Callable[P, Awaitable[R]], /) -> Callable[P, Coroutine[Any, Any, R]]: ...

    @overload
    def __call__(
        self, *, timeout: float | None = ..., on_busy: Literal["raise"] = ...
    ) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Coroutine[Any, Any, R]]]: ...

    @overload
    def __call__(
        self, *, timeout: float | None = ..., on_busy: Literal["skip"]
    ) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Coroutine[Any, Any, R | None]]]: ...

    @overload
    def __call__(
        self, *, timeout: float | None = ..., on_busy: Callable[..., Awaitable[S]]
    ) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Coroutine[Any, Any, R | S]]]: ...

    @overload
    def __call__(
        self, *, timeout: float | None = ..., on_busy: Callable[..., S]
    ) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Coroutine[Any, Any, R | S]]]: ...

    def __call__(
        self,
        function: Callable[..., Any] | None = None,
        *,
        timeout: float | None = None,
        on_busy: str | Callable[..., Any] = "raise",
    ) -> Any:
        """Decorate a coroutine function: each call first acquires one. See `RateLimiter.__call__`.

        An awaitable result of `on_busy` is awaited.

        Raises:
            ValueError: As for `RateLimiter.__call__`.
            TypeError: The decorated object is not a coroutine function or method: use the `Client`'s limiter for
                others; or it was made of a generator function, because its body could run without the limit.
        """
        return self._decorator(function, timeout, on_busy)
