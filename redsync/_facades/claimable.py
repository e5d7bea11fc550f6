"""Acquire, release and `with`: what locks and semaphores have in common, in both flavours.

An acquire that is interrupted after its success gives its hold back, because the caller will never learn of it. So does
the begin of a `with`: unless `__enter__` returns, Python does not call `__exit__`.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from typing import Any, TypeVar

from redsync._core.effects import Steps
from redsync._core.frames import statement
from redsync._core.holds import HoldState
from redsync._core.interruptions import is_interruption
from redsync._core.runner import AnyHost, AsyncRunner, Runner, RunnerT_co, Session
from redsync._core.timing import check_timeout
from redsync._facades.enterable import Enterable, TaskEnterable, ThreadEnterable
from redsync._facades.hold import AnyHold, AsyncHold, Hold
from redsync._protocols.acquire_requests import AcquireRequest
from redsync._protocols.observing import observed
from redsync.exceptions import AcquireTimeout, RedsyncError

__all__ = ["Claimable", "HoldT", "TaskClaimable", "ThreadClaimable"]

HoldT = TypeVar("HoldT", bound=AnyHold[Any])
ThreadHoldT = TypeVar("ThreadHoldT", bound=Hold)
TaskHoldT = TypeVar("TaskHoldT", bound=AsyncHold)


def _tell_lost(make_hold: Callable[[HoldState], HoldT], on_lost: Callable[[HoldT], object], state: HoldState) -> None:
    """Hand a lost hold to a callback; a function, so that it refers neither to the lock object nor to its class."""
    on_lost(make_hold(state))


@cache
def _kind_of(facade: type) -> str:
    """Return the kind of a synchronizer, such as "fair_lock" for `AsyncFairLock` and its subclasses."""
    ours = next(each for each in facade.__mro__ if each.__module__.startswith("redsync."))
    return re.sub(r"(?<=.)(?=[A-Z])", "_", ours.__name__.removeprefix("Async")).lower()


class Claimable(Enterable[RunnerT_co, HoldT]):
    """What locks and semaphores of both flavours have in common: everything that needs no waiting."""

    _HOLD: type[HoldT]

    def _set_up(
        self,
        host: AnyHost[RunnerT_co],
        timeout: float | None,
        lease: float | None,
        max_hold: float | None,
        on_lost: Callable[[HoldT], object] | None,
    ) -> None:
        """Check and keep the options."""
        self._host = host
        self._runner = host.runner
        self._timeout = check_timeout(True, timeout)
        timing = self._runner.session.timing
        self._lease = None if lease is None else timing.check_lease(lease)
        self._max_hold = None if max_hold is None else timing.check_lease(max_hold, "max_hold")
        self._on_lost = on_lost
        # Not a bound method: a hold must not keep alive a lock object that the program has dropped.
        self._tell_lost = None if on_lost is None else partial(_tell_lost, partial(self._HOLD, host), on_lost)
        self._entered = {}

    @property
    @abstractmethod
    def name(self) -> str | bytes:
        """The name, as it was given."""

    @abstractmethod
    def _request(self, timeout: float | None, lease: float | None, count: int) -> AcquireRequest:
        """Return the acquire request."""

    @abstractmethod
    def _acquire_steps(self, session: Session, request: AcquireRequest, now: float) -> Steps[HoldState | None]:
        """Return the protocol that acquires."""

    def _observed_steps(self, session: Session, request: AcquireRequest, now: float) -> Steps[HoldState | None]:
        """Return the protocol that acquires and tells observers."""
        return observed(session, request, now, self._acquire_steps, kind=_kind_of(type(self)), limit=self._limit)

    @property
    def _limit(self) -> int | None:
        """How many permits there are; None for a lock."""
        return None

    @abstractmethod
    def _undo_steps(self, state: HoldState, count: int) -> Steps[None]:
        """Return the protocol that gives back the hold of an interrupted acquire."""

    @abstractmethod
    def _may_release(self, hold: HoldT) -> bool:
        """Whether leaving the `with` that returned `hold` releases the current hold, even if it is another one."""

    def _options(self) -> dict[str, Any]:
        """Return the options that the object was made with."""
        return {
            "timeout": self._timeout,
            "lease": self._lease,
            "max_hold": self._max_hold,
            "on_lost": self._on_lost,
        }


class ThreadClaimable(Claimable[Runner, ThreadHoldT], ThreadEnterable[ThreadHoldT]):
    """Acquire, release and `with`, for threads."""

    @abstractmethod
    def release(self) -> None:
        """Give one acquisition back."""

    def _acquire(self, timeout: float | None, lease: float | None = None, count: int = 1) -> ThreadHoldT | None:
        runner, request = self._runner, self._request(timeout, lease, count)
        try:
            begin = self._observed_steps if runner.session.observed else self._acquire_steps
            state = runner.run(begin(runner.session, request, runner.now()))
            hold = None if state is None else self._HOLD(self._host, state, self._tell_lost)
        except BaseException:
            if request.outcome.state is not None:
                self._undo(request.outcome.state, count)
            raise
        # No call here: an interruption at its begin would leave the lock held, and no caller to know it.
        return hold

    def _undo(self, state: HoldState, count: int) -> None:
        # Only the interruption matters; a hold that is lost or can't be given back everywhere is gone all the same.
        with suppress(RedsyncError):
            self._runner.give_back(self._undo_steps(state, count))

    def __enter__(self) -> ThreadHoldT:
        """Acquire, waiting up to the `timeout` option; for ever by default.

        Raises:
            AcquireTimeout: Others held it all the time.
            QuorumError: Too few nodes answered before the timeout.
            ConfigurationError: For a semaphore, the nodes know another number of permits than this program.
        """
        hold = self._acquire(self._timeout)
        if hold is None:
            raise AcquireTimeout(self.name, self._timeout or 0.0)
        try:
            hold._state.entered = True
            self._enter(hold, statement())
        except BaseException:
            self._forget(hold)
            self._undo(hold._state, 1)
            raise
        return hold

    def _leave(self, hold: ThreadHoldT | None) -> None:
        if hold is None:
            self.release()
            return
        try:
            if not hold._released and not hold._is_being_released():
                # The body may have released and acquired again, as a condition does.
                self.release() if self._may_release(hold) else hold.release()
        except RedsyncError as error:
            if not is_interruption(error):
                self._forget(hold)
            raise
        self._forget(hold)


class TaskClaimable(Claimable[AsyncRunner, TaskHoldT], TaskEnterable[TaskHoldT]):
    """Acquire, release and `async with`, for asyncio."""

    @abstractmethod
    async def release(self) -> None:
        """Give one acquisition back."""

    async def _acquire(self, timeout: float | None, lease: float | None = None, count: int = 1) -> TaskHoldT | None:
        runner, request = self._runner, self._request(timeout, lease, count)
        try:
            begin = self._observed_steps if runner.session.observed else self._acquire_steps
            state = await runner.run(begin(runner.session, request, runner.now()))
            hold = None if state is None else self._HOLD(self._host, state, self._tell_lost)
        except BaseException:
            if request.outcome.state is not None:
                with suppress(RedsyncError):
                    await runner.run(self._undo_steps(request.outcome.state, count))
            raise
        return hold

    async def __aenter__(self) -> TaskHoldT:
        """Acquire, waiting up to the `timeout` option; for ever by default.

        The body is cancelled when the hold is lost, unless there is an `on_lost` option.

        Raises:
            AcquireTimeout: Others held it all the time.
            QuorumError: Too few nodes answered before the timeout.
            ConfigurationError: For a semaphore, the nodes know another number of permits than this program.
        """
        hold = await self._acquire(self._timeout)
        if hold is None:
            raise AcquireTimeout(self.name, self._timeout or 0.0)
        # Nothing is awaited from here on, so nothing comes between the acquire and the `__aexit__` that goes with it.
        hold._state.entered = True
        if self._on_lost is None:
            hold._open_scope()
        self._enter(hold, statement())
        return hold

    async def _leave(self, hold: TaskHoldT | None) -> None:
        if hold is None:
            await self.release()
            return
        try:
            if not hold._released:
                # The body may have released and acquired again.
                await (self.release() if self._may_release(hold) else hold.release())
        finally:
            self._forget(hold)
