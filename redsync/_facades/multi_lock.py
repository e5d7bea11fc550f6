"""The multi-lock: several locks as one, all or none, without deadlocks; for threads and for asyncio.

```python
with client.get_multi_lock(client.get_lock("account:7"), client.get_lock("account:9"), timeout=2.0):
    transfer()
```

Each lock's protocol decides about that lock; this module decides about the others: which to acquire next, and which to
release.

A multi-lock acquires its locks in the order of their keys, regardless of the order of the arguments. So among owners
that wait for each other, one always holds the last lock of all, and continues.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar
from weakref import ReferenceType

from redsync._core.holds import HoldState
from redsync._core.session import AsyncRunner, Runner, RunnerT_co
from redsync._core.timing import check_timeout
from redsync._facades.claimable import HoldT
from redsync._facades.enterable import Enterable, Statement, TaskEnterable, ThreadEnterable, statement
from redsync._facades.exclusive import AsyncExclusiveLock, Exclusive, ExclusiveLock, Saved
from redsync._facades.multi_hold import (
    AnyMultiHold,
    AsyncMultiHold,
    AsyncPerforming,
    MultiHold,
    Performing,
    Plan,
    release_all,
    release_rest,
)
from redsync._protocols.claims import AcquireRequest
from redsync.exceptions import AcquireTimeout

__all__ = ["AnyMultiLock", "AsyncMultiLock", "MultiLock"]

LockT = TypeVar("LockT", bound=Exclusive[Any, Any])
MultiHoldT = TypeVar("MultiHoldT", bound=AnyMultiHold[Any])

_INSTANT = 1e-6
"""Once the deadline has passed, the remaining locks still get one try, with this timeout in seconds."""


def _hold_of(lock: Exclusive[Any, HoldT], state: HoldState, acquisitions: int = 1) -> HoldT:
    hold = lock._HOLD(lock._runner, state, lock._tell_lost)
    hold._acquisitions = acquisitions
    return hold


class AnyMultiLock(Enterable[RunnerT_co, MultiHoldT], Generic[RunnerT_co, LockT, MultiHoldT]):
    """The common base of multi-locks of both flavours: the methods that do not wait."""

    _MADE_OF: ClassVar[type[Any]]
    _HOLD: type[MultiHoldT]

    def __init__(self, locks: Sequence[LockT], *, timeout: float | None = None) -> None:
        self._locks: tuple[LockT, ...] = tuple(sorted(self._checked(locks), key=lambda lock: lock._keys.lock))
        self._timeout = check_timeout(True, timeout)
        # The first lock's runner provides clock and owners: all clients of one flavour share one clock, and distinguish
        # threads or tasks in the same way.
        self._runner: RunnerT_co = self._locks[0]._runner
        self._entered, self._latest = {}, {}

    def _checked(self, locks: Sequence[LockT]) -> Sequence[LockT]:
        if not locks:
            raise ValueError("a multi-lock needs at least one lock")
        taken: set[bytes] = set()
        for lock in locks:
            if not isinstance(lock, self._MADE_OF):
                takes = f"{type(self).__name__} takes locks of its flavour, one by one, and no multi-locks"
                raise TypeError(f"{takes}; not {lock!r}")
            if lock._min_hold is not None:
                raise ValueError(f"a multi-lock takes no lock with min_hold, such as {lock.name!r}")
            if lock._keys.lock in taken:
                raise ValueError(
                    f"lock {lock.name!r} is given twice: locks of different nodes need different names or prefixes"
                )
            taken.add(lock._keys.lock)
        return locks

    @property
    def name(self) -> tuple[str | bytes, ...]:
        """The locks' names, in the order of acquisition."""
        return tuple(lock.name for lock in self._locks)

    def owned(self) -> bool:
        """Return True while the owner has a valid hold of every lock."""
        return all(lock.owned() for lock in self._locks)

    def hold_count(self) -> int:
        """Return how many acquisitions of all locks the owner has yet to release: the smallest hold count."""
        return min(lock.hold_count() for lock in self._locks)

    def remaining(self) -> float:
        """Return for how many seconds all holds of the owner stay valid, 0.0 if one is missing."""
        return min(lock.remaining() for lock in self._locks)

    def _own(self) -> list[Any]:
        return [_hold_of(lock, lock._own()) for lock in self._locks]

    def _enter(self, hold: MultiHoldT, begun: Statement) -> None:
        """Record the hold that a `with` returned, here and with each lock, as if each lock had its own `with`."""
        super()._enter(hold, begun)
        for lock, part in self._parts(hold):
            lock._enter(part, begun)

    def _parts(self, hold: MultiHoldT) -> Iterable[tuple[Any, Any]]:
        return zip(self._locks, hold._holds, strict=True)

    def _acquire_plan(
        self,
        timeout: float | None,
        lease: float | None = None,
        saved: Mapping[Any, Saved] | None = None,
        begun: Statement | None = None,
    ) -> Plan[MultiHoldT]:
        """Acquire all locks, and enter the `with` that has `begun`; after an error or an interruption none is held.

        `saved` has the acquisitions to make of each lock, and their lease; None for one of each.

        Raises:
            AcquireTimeout: Other owners held one of them throughout.
            LeaseLostError: An acquired lock was lost during the wait for another one.
        """
        task, hold = self._asking_task(), None
        deadline = self._runner.now() + (timeout or 0.0)
        requests: dict[Exclusive[Any, Any], AcquireRequest] = {}

        def won() -> list[Any]:
            # Also one whose call was interrupted before it returned.
            return [_hold_of(each, its.state, its.holds) for each, its in requests.items() if its.state is not None]

        try:
            for lock in self._locks:
                left = max(deadline - self._runner.now(), _INSTANT) if timeout else timeout
                count, its_lease = (1, lease) if saved is None else saved[lock][:2]
                requests[lock] = request = lock._request(left, its_lease, count)
                state = yield partial(lock._runner.run, lock._begin(request))
                for part in won():
                    if part.lost:
                        part.check()
                if state is None:
                    raise lock._timed_out(request, timeout)
            hold = self._HOLD(won())
            for part in hold._holds:
                part._state.task = task or part._state.task
            if begun is not None:
                self._enter(hold, begun)
        except BaseException as error:
            yield from release_rest([part.release for part in won()], error)
            if hold is not None:  # Its `with` does not begin.
                self._forget(hold)
                for lock, part in self._parts(hold):
                    lock._forget(part)
            raise
        return hold

    def _release_plan(self) -> Plan[None]:
        return release_all([hold.release for hold in self._own()])

    def _leave_plan(self, hold: MultiHoldT | None) -> Plan[None]:
        if hold is None:
            yield from self._release_plan()
            return
        try:
            yield from release_all([partial(lock._leave, part) for lock, part in self._parts(hold)])
        finally:
            self._forget(hold)

    def _asking_task(self) -> ReferenceType[Any] | None:
        """Return the asyncio task in whose step a thread acquires; None for all others."""
        return None

    def _may_end(self, hold: MultiHoldT) -> bool:
        return all(lock._may_end(part) for lock, part in self._parts(hold))

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), timeout=self._timeout), (self._locks,)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {', '.join(map(repr, self.name))}>"


# Its methods come from those of AsyncMultiLock: change those, then run `make twins`.
class MultiLock(Performing, AnyMultiLock[Runner, ExclusiveLock, MultiHold], ThreadEnterable[MultiHold]):
    """Several locks as one, for threads: all or none held; of any kind, even from different clients.

    Two multi-locks never deadlock, no matter which locks they share, if their owners hold none of these locks before:
    each acquires its locks in the order of their keys. Each lock keeps its own guarantees. A multi-lock is as reentrant
    as the least reentrant of its locks. A `threading.Condition` releases all of them to wait, and has all or none of
    them afterwards. Any number of threads may use one object.

    Made by `Client.get_multi_lock`.
    """

    _MADE_OF = ExclusiveLock
    _HOLD = MultiHold

    def acquire(self, blocking: bool = True, timeout: float | None = -1, *, lease: float | None = None) -> bool:
        """Acquire all locks; return True on success. The contract is that of `threading.RLock`.

        If one lock is busy, or the call is interrupted, the locks acquired so far are released.

        Args:
            blocking: Wait while other owners hold one of them; if False, try once.
            timeout: The longest wait in seconds, for all of them together; -1 or None for no limit.
            lease: The lease of each lock, as for its own `acquire`.

        Raises:
            QuorumError: Too few nodes of one lock answered in the only try, or for the shorter of `timeout` and
                `outage_timeout`.
            LeaseLostError: The owner already held a lock and lost it, or one was lost during the wait for another.
            KeyTypeError: The key of one lock holds a value of another type.
            ValueError: The arguments contradict each other, or the lease is invalid.
        """
        try:
            self._perform(self._acquire_plan(check_timeout(blocking, timeout), lease))
        except AcquireTimeout:
            return False
        return True

    def release(self) -> None:
        """Release one acquisition of each lock, in reverse order; an error does not stop the others.

        Raises:
            NotOwnedError: The owner does not hold all of them; nothing changed.
            LeaseLostError: The owner held them, but had lost one; if several, the error carries the others as notes.
        """
        self._perform(self._release_plan())

    def __enter__(self) -> MultiHold:
        """Acquire all locks; wait at most for the `timeout` option in total, without limit by default.

        Raises:
            AcquireTimeout: Other owners held one of them throughout; the error has that lock's name.
            QuorumError: Too few nodes of one lock answered for the shorter of that and `outage_timeout`.
            LeaseLostError: As for `acquire`.
        """
        return self._perform(self._acquire_plan(self._timeout, begun=statement()))

    def _leave(self, hold: MultiHold | None) -> None:
        self._perform(self._leave_plan(hold))

    def locked(self) -> bool:
        """Return True if any owner holds one of the locks on a quorum of its nodes; it may be outdated at once.

        Raises:
            QuorumError: Too few nodes answered.
        """
        return any(lock.locked() for lock in self._locks)

    def extend(self, lease: float | None = None) -> None:
        """Extend the owner's hold of each lock now, see `MultiHold.extend`.

        Raises:
            NotOwnedError: The owner does not hold all of them; nothing changed.
            LeaseLostError: One of its holds was lost.
            QuorumError: Too few nodes of one lock answered; its hold is unchanged.
        """
        MultiHold(self._own()).extend(lease)

    def force_release(self) -> bool:
        """Take each lock from its holder and free it for the next waiter; return True if one was held.

        For operators, not for programs, see `Lock.force_release`. The first error ends the call.

        Raises:
            QuorumError: Too few nodes of one lock answered; those that did have freed it.
            KeyTypeError: The key of one lock holds a value of another type.
        """
        return True in [lock.force_release() for lock in self._locks]

    # The interface that threading.Condition needs.

    def _is_owned(self) -> bool:
        return all(lock._is_owned() for lock in self._locks)

    def _release_save(self) -> list[Saved]:
        saved = [lock._save() for lock in self._locks]
        calls = [partial(lock._give_back, its.acquisitions) for lock, its in zip(self._locks, saved, strict=True)]
        self._perform(release_all(calls))
        return saved

    def _acquire_restore(self, saved: Sequence[Saved]) -> None:
        again = self._perform(self._acquire_plan(None, saved=dict(zip(self._locks, saved, strict=True))))
        for (lock, hold), its in zip(self._parts(again), saved, strict=True):
            lock._restore(its, hold)

    def _asking_task(self) -> ReferenceType[Any] | None:
        task = self._runner.task()
        if task is not None:
            for lock in self._locks:
                lock._refuse_other_task(task)
        return task


class AsyncMultiLock(
    AsyncPerforming, AnyMultiLock[AsyncRunner, AsyncExclusiveLock, AsyncMultiHold], TaskEnterable[AsyncMultiHold]
):
    """Several locks as one, for asyncio: all or none held; of any kind, even from different clients.

    The guarantees are those of `MultiLock`. Cancellation is safe at every await: a cancelled acquire leaves nothing on
    the nodes, a cancelled release still releases all locks.

    Made by `AsyncClient.get_multi_lock`.
    """

    _MADE_OF = AsyncExclusiveLock
    _HOLD = AsyncMultiHold

    async def acquire(self, blocking: bool = True, timeout: float | None = -1, *, lease: float | None = None) -> bool:
        """Acquire all locks; return True on success. A cancelled call holds none. See `MultiLock.acquire`."""
        try:
            await self._perform(self._acquire_plan(check_timeout(blocking, timeout), lease))
        except AcquireTimeout:
            return False
        return True

    async def release(self) -> None:
        """Release one acquisition of each lock. A cancelled release still takes effect. See `MultiLock.release`."""
        await self._perform(self._release_plan())

    async def __aenter__(self) -> AsyncMultiHold:
        """Acquire all locks; wait at most for the `timeout` option in total. See `MultiLock.__enter__`.

        The body is cancelled when one of the holds is lost, unless that lock has an `on_lost` option.
        """
        return await self._perform(self._acquire_plan(self._timeout, begun=statement()))

    async def _leave(self, hold: AsyncMultiHold | None) -> None:
        await self._perform(self._leave_plan(hold))

    async def locked(self) -> bool:
        """Return True if any owner holds one of the locks on a quorum of its nodes. See `MultiLock.locked`."""
        for lock in self._locks:
            if await lock.locked():
                return True
        return False

    async def extend(self, lease: float | None = None) -> None:
        """Extend the owner's hold of each lock now. See `MultiLock.extend`."""
        await AsyncMultiHold(self._own()).extend(lease)

    async def force_release(self) -> bool:
        """Take each lock from its holder and free it for the next waiter. See `MultiLock.force_release`."""
        return True in [await lock.force_release() for lock in self._locks]

    def _enter(self, hold: AsyncMultiHold, begun: Statement) -> None:
        # No await from here on, so nothing comes between the acquire and its `__aexit__`.
        silent = [part for lock, part in self._parts(hold) if lock._on_lost is None]
        hold._watch(self._runner.scope(), [part._state for part in silent])
        super()._enter(hold, begun)
