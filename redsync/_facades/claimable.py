"""Acquire, release and `with`: the common base of locks and semaphores, in both flavours.

An acquire that is interrupted after its success releases its hold, because the caller never learns of it. So does the
start of a `with`: unless `__enter__` returns, Python does not call `__exit__`.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from typing import Any, ClassVar, Generic, TypeAlias, TypedDict, TypeVar
from weakref import ReferenceType, ref

from redsync._core.effects import Steps
from redsync._core.holds import HoldState, Owner
from redsync._core.keys import LockKeys
from redsync._core.observing import is_function
from redsync._core.scripts import ClaimKind
from redsync._core.session import AnyHost, AsyncRunner, Runner, RunnerT_co, Session
from redsync._core.timing import check_timeout
from redsync._facades.enterable import Enterable, Statement, TaskEnterable, ThreadEnterable, statement
from redsync._facades.hold import AnyHold, AsyncHold, Hold
from redsync._protocols.claims import AcquireRequest
from redsync._protocols.observed import observed
from redsync._protocols.queue_policies import QueuePolicy
from redsync.exceptions import AcquireTimeout, RedsyncError

__all__ = ["Acquire", "Claimable", "HoldOptions", "HoldT", "LockOptions", "TaskClaimable", "ThreadClaimable"]

Acquire: TypeAlias = Callable[[Session, AcquireRequest, float], Steps[HoldState | None]]
"""Returns the protocol that acquires."""

HoldT = TypeVar("HoldT", bound=AnyHold[Any])
ThreadHoldT = TypeVar("ThreadHoldT", bound=Hold)
TaskHoldT = TypeVar("TaskHoldT", bound=AsyncHold)


class HoldOptions(TypedDict, Generic[HoldT], total=False):
    """The options of locks and semaphores, see `Client.get_lock`."""

    timeout: float | None
    lease: float | None
    max_hold: float | None
    on_lost: Callable[[HoldT], object] | None


class LockOptions(HoldOptions[HoldT], total=False):
    """The options of locks, see `Client.get_lock`."""

    min_hold: float | None


def _tell_lost(make_hold: Callable[[HoldState], HoldT], on_lost: Callable[[HoldT], object], state: HoldState) -> None:
    """Hand a lost hold to a callback; a function, so that it keeps no reference to the lock object or its class."""
    on_lost(make_hold(state))


@cache
def _kind_of(facade: type) -> str:
    """Return the kind of a synchronizer, such as "fair_lock" for `AsyncFairLock` and its subclasses."""
    ours = next(each for each in facade.__mro__ if each.__module__.startswith("redsync."))
    return re.sub(r"(?<=.)(?=[A-Z])", "_", ours.__name__.removeprefix("Async")).lower()


class Claimable(Enterable[RunnerT_co, HoldT]):
    """The common base of locks and semaphores of both flavours: the methods that do not wait."""

    _HOLD: type[HoldT]
    _KIND: ClassVar[ClaimKind]
    _acquire_steps: Acquire
    _keys: LockKeys

    _claimant: Callable[[], Owner]
    """Returns the owner that acquires."""

    _queue: Callable[..., QueuePolicy] | None = None
    """Makes the policy by which its acquires wait; None: that of its kind."""

    def _set_up(
        self,
        host: AnyHost[RunnerT_co],
        name: str | bytes,
        *,
        timeout: float | None = None,
        lease: float | None = None,
        max_hold: float | None = None,
        on_lost: Callable[[HoldT], object] | None = None,
        **unknown: object,
    ) -> None:
        """Check and keep the options; a copy gets them again as given."""
        if unknown:
            raise TypeError(f"a {_kind_of(type(self)).replace('_', ' ')} has no option {', '.join(unknown)}")
        self._host = host
        self._name = name
        self._runner = host.runner
        self._timeout = None if timeout is None else check_timeout(True, timeout)
        self._lease = None if lease is None else self._runner.session.timing.check_lease(lease)
        self._max_hold = None if max_hold is None else self._runner.session.timing.check_lease(max_hold, "max_hold")
        if on_lost is not None and not is_function(on_lost):
            raise TypeError(f"on_lost is a function that takes the hold, no coroutine or generator; not {on_lost!r}")
        self._on_lost = on_lost
        self._options: dict[str, Any] = {"timeout": timeout, "lease": lease, "max_hold": max_hold, "on_lost": on_lost}
        # Not a bound method: a hold must keep neither a lock object nor a client alive that the program has dropped.
        self._tell_lost = None if on_lost is None else partial(_tell_lost, partial(self._HOLD, host.runner), on_lost)
        self._entered, self._latest = {}, {}

    @property
    def name(self) -> str | bytes:
        """The name, as given."""
        return self._name

    def _request(self, timeout: float | None, lease: float | None, count: int) -> AcquireRequest:
        return AcquireRequest(
            name=self._name,
            kind=self._KIND,
            keys=self._keys,
            owner=self._claimant(),
            lease=self._lease if lease is None else self._runner.session.timing.check_lease(lease),
            timeout=timeout,
            max_hold=self._max_hold,
            on_lost=self._tell_lost,
            holds=count,
            queue=self._queue,
        )

    def _begin(self, request: AcquireRequest) -> Steps[HoldState | None]:
        """Return the protocol that acquires, and tells observers if there are any."""
        session, now = self._runner.session, self._runner.clock()
        if session.observed:
            return observed(session, request, now, self._acquire_steps, kind=_kind_of(type(self)), limit=self._limit)
        return self._acquire_steps(session, request, now)

    def _timed_out(self, request: AcquireRequest, timeout: float | None) -> AcquireTimeout:
        """Return the error of a `with` that others kept from beginning."""
        held = f"still held by {request.holder or 'others'}" if self._limit is None else "still out of free permits"
        problem = f"{_kind_of(type(self)).replace('_', ' ')} {self._name!r} was {held}"
        return AcquireTimeout(self._name, timeout or 0.0, problem, request.holder)

    @property
    def _limit(self) -> int | None:
        """The number of permits; None for a lock."""
        return None

    def _note_success(self, state: HoldState, request: AcquireRequest) -> None:
        """Record the success of an acquire."""

    @abstractmethod
    def _undo_steps(self, state: HoldState, request: AcquireRequest) -> Steps[None]:
        """Return the protocol that releases what an interrupted acquire has acquired."""

    @abstractmethod
    def _leave_steps(self, hold: HoldT) -> Steps[None]:
        """Return the protocol that releases at the end of the `with` that returned `hold`."""

    def _enter(self, hold: HoldT, begun: Statement) -> None:
        super()._enter(hold, begun)
        hold._state.entered[hold] = ref(self)


class ThreadClaimable(Claimable[Runner, ThreadHoldT], ThreadEnterable[ThreadHoldT]):
    """Acquire, release and `with`, for threads."""

    @abstractmethod
    def release(self) -> None:
        """Release one acquisition."""

    def _acquire(
        self,
        timeout: float | None,
        lease: float | None = None,
        count: int = 1,
        begun: Statement | None = None,
    ) -> ThreadHoldT | None:
        request = self._request(timeout, lease, count)
        request.for_with = begun is not None
        runner, hold = self._runner, None
        task = runner.task()
        if task is not None:
            self._refuse_other_task(task)
        try:
            state = runner.run(self._begin(request))
            if state is not None:
                state.task = task or state.task
                self._note_success(state, request)
                hold = self._HOLD(runner, state, self._tell_lost)
                if begun is not None:
                    self._enter(hold, begun)
        except BaseException:
            self._forget(hold)
            if request.state is not None:
                # Report only the interruption: a hold that is lost, or not released on every node, is over anyway.
                with suppress(RedsyncError):
                    runner.give_back(self._undo_steps(request.state, request))
            raise
        if hold is None and begun is not None:
            raise self._timed_out(request, timeout)
        # No call here: an interruption at its start would leave a lock held that no caller knows of.
        return hold

    def _refuse_other_task(self, task: ReferenceType[Any]) -> None:
        """Raise if another task of this thread is inside: a thread is one owner, so both would be."""

    def __enter__(self) -> ThreadHoldT:
        """Acquire; wait at most for the `timeout` option, without limit by default.

        Raises:
            AcquireTimeout: Other owners held it throughout.
            QuorumError: Too few nodes answered for the shorter of that and `outage_timeout`.
            ConfigurationError: The nodes have another number of permits for this semaphore.
        """
        hold = self._acquire(self._timeout, begun=statement())
        assert hold is not None, "it raises if it is to enter, and can't"
        return hold

    def _leave(self, hold: ThreadHoldT | None) -> None:
        if hold is None:
            self.release()
            return
        try:
            if not hold._released:
                self._runner.give_back(self._leave_steps(hold))
        except RedsyncError:
            self._forget(hold)
            raise
        self._forget(hold)


class TaskClaimable(Claimable[AsyncRunner, TaskHoldT], TaskEnterable[TaskHoldT]):
    """Acquire, release and `async with`, for asyncio."""

    @abstractmethod
    async def release(self) -> None:
        """Release one acquisition."""

    async def _acquire(
        self,
        timeout: float | None,
        lease: float | None = None,
        count: int = 1,
        begun: Statement | None = None,
    ) -> TaskHoldT | None:
        request = self._request(timeout, lease, count)
        runner, hold = self._runner, None
        try:
            state = await runner.run(self._begin(request))
            # No await from here on, so nothing comes between the acquire and its `__aexit__`.
            if state is not None:
                self._note_success(state, request)
                hold = self._HOLD(runner, state, self._tell_lost)
                if begun is not None:
                    self._enter(hold, begun)
        except BaseException:
            self._forget(hold)
            if request.state is not None:
                with suppress(RedsyncError):
                    await runner.run(self._undo_steps(request.state, request))
            raise
        if hold is None and begun is not None:
            raise self._timed_out(request, timeout)
        return hold

    async def __aenter__(self) -> TaskHoldT:
        """Acquire; wait at most for the `timeout` option, without limit by default.

        The body is cancelled when the hold is lost, unless there is an `on_lost` option.

        Raises:
            AcquireTimeout: Other owners held it throughout.
            QuorumError: Too few nodes answered for the shorter of that and `outage_timeout`.
            ConfigurationError: The nodes have another number of permits for this semaphore.
        """
        hold = await self._acquire(self._timeout, begun=statement())
        assert hold is not None, "it raises if it is to enter, and can't"
        if self._on_lost is None:
            hold._open_scope()
        return hold

    async def _leave(self, hold: TaskHoldT | None) -> None:
        if hold is None:
            await self.release()
            return
        try:
            if not hold._released:
                await self._runner.run(self._leave_steps(hold))
        finally:
            self._forget(hold)
