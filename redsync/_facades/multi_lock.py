"""The multi-lock: several locks as one, all or none, without deadlocks; `multi_lock_async` is the twin.

```python
with client.get_multi_lock(client.get_lock("account:7"), client.get_lock("account:9"), timeout=2.0):
    transfer()
```

`multi_attempt` explains the order of acquisition, and why multi-locks never wait for each other in a circle. Each
lock's protocol decides about that lock; this module decides about the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import Any, ClassVar, Generic, TypeVar

from redsync._core.frames import statement
from redsync._core.runner import Runner, RunnerT_co
from redsync._core.timing import check_timeout
from redsync._facades.enterable import Enterable, ThreadEnterable
from redsync._facades.exclusive import Exclusive, ExclusiveLock, Saved
from redsync._facades.hold import Hold
from redsync._facades.multi_attempt import Attempt, Course
from redsync._facades.multi_hold import AnyMultiHold, MultiHold, do_each, raise_first, release_all
from redsync.exceptions import AcquireTimeout, RedsyncError

__all__ = ["AnyMultiLock", "MultiLock"]

LockT = TypeVar("LockT", bound=Exclusive[Any, Any])
MultiHoldT = TypeVar("MultiHoldT", bound=AnyMultiHold[Any])


class AnyMultiLock(Enterable[RunnerT_co, MultiHoldT], Generic[RunnerT_co, LockT, MultiHoldT]):
    """The common base of multi-locks of both flavours: the methods that do not wait."""

    _MADE_OF: ClassVar[type[Any]]
    _FLAVOUR: ClassVar[str]

    def __init__(self, locks: Sequence[LockT], *, timeout: float | None = None) -> None:
        self._locks: tuple[LockT, ...] = tuple(sorted(self._checked(locks), key=_rank))
        self._timeout = check_timeout(True, timeout)
        # The first lock's runner provides clock and owners: all clients of one flavour share one clock, and distinguish
        # threads or tasks in the same way.
        self._runner: RunnerT_co = self._locks[0]._runner
        self._entered = {}

    def _checked(self, locks: Sequence[LockT]) -> Sequence[LockT]:
        if not locks:
            raise ValueError("a multi-lock needs at least one lock")
        taken: set[tuple[bytes, str]] = set()
        for lock in locks:
            if isinstance(lock, AnyMultiLock):
                raise TypeError("a multi-lock takes locks, not multi-locks: pass the locks of that one")
            if not isinstance(lock, self._MADE_OF):
                what = f"locks for {self._FLAVOUR}, one by one"
                raise TypeError(f"a multi-lock for {self._FLAVOUR} takes {what}, not {lock!r}")
            places = {(lock._keys.lock, home) for home in lock._runner.homes}
            if not places.isdisjoint(taken):
                raise ValueError(f"lock {lock.name!r} is given twice, or shares its key with another on some node")
            taken |= places
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
        """Return the owner's hold of each lock.

        Raises:
            NotOwnedError: The owner does not hold one of them.
        """
        return [lock._HOLD(lock._host, lock._own(), lock._tell_lost) for lock in self._locks]

    def _enter(self, hold: MultiHoldT, frame: FrameType | None) -> None:
        """Record the hold that a `with` returned, here and with each lock, as if each lock had its own `with`."""
        super()._enter(hold, frame)
        for lock, part in zip(self._locks, hold._holds, strict=True):
            lock._enter(part, frame)

    def _may_end(self, hold: MultiHoldT) -> bool:
        return all(lock._may_end(part) for lock, part in zip(self._locks, hold._holds, strict=True))

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), timeout=self._timeout), (self._locks,)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {', '.join(map(repr, self.name))}>"


def _rank(lock: Exclusive[Any, Any]) -> tuple[bytes, str, list[str]]:
    """Return a lock's sort key: first its key on the nodes, the same in every process; ties are broken arbitrarily."""
    return lock._keys.lock, lock._KIND.noun, sorted(lock._runner.homes)


def _follow(course: Course) -> None:
    result, error = None, None
    while True:
        try:
            step = course.send(result) if error is None else course.throw(error)
        finally:
            # The error refers to this frame, so the frame must not keep the error.
            error = None
        if step is None:
            return
        lock, steps = step
        try:
            result = lock._runner.run(steps)
        except RedsyncError as raised:
            error = raised


# Its methods come from those of AsyncMultiLock: change those, then run `make twins`.
class MultiLock(AnyMultiLock[Runner, ExclusiveLock, MultiHold], ThreadEnterable[MultiHold]):
    """Several locks as one, for threads: all or none held; of any kind, even from different clients.

    Two multi-locks never deadlock, no matter which locks they share, if their owners hold none of these locks before:
    each acquires its locks in the order of their keys, and while it holds one of several locks of one name on different
    nodes, it waits for none of the others. Each lock keeps its own guarantees. A multi-lock is as reentrant as the
    least reentrant of its locks. A `threading.Condition` releases all of them to wait, and has all or none of them
    afterwards. Any number of threads may use one object.

    Made by `Client.get_multi_lock`.
    """

    _MADE_OF = ExclusiveLock
    _FLAVOUR = "threads"

    def acquire(self, blocking: bool = True, timeout: float | None = -1, *, lease: float | None = None) -> bool:
        """Acquire all locks; return True on success. The contract is that of `threading.RLock`.

        If one lock is busy, or the call is interrupted, the locks acquired so far are released.

        Args:
            blocking: Wait while other owners hold one of them; if False, try once.
            timeout: The longest wait in seconds, for all of them together; -1 or None for no limit.
            lease: The lease of each lock, as for its own `acquire`.

        Raises:
            QuorumError: Too few nodes of one lock answered: at once if not blocking, else at the end of the timeout.
            LeaseLostError: The owner already held a lock and lost it, or one was lost during the wait for another.
            KeyTypeError: The key of one lock holds a value of another type.
            ConfigurationError: Two of them are one lock, on the same servers under different addresses.
            ValueError: The arguments contradict each other, or the lease is invalid.
        """
        attempt = self._acquire(check_timeout(blocking, timeout), lease)
        return attempt.busy is None

    def _acquire(self, timeout: float | None, lease: float | None = None) -> Attempt[Hold]:
        attempt: Attempt[Hold] = Attempt(self._locks, timeout, lease)
        task = self._runner.task()
        if task is not None:
            for lock in self._locks:
                lock._refuse_other_task(task)
        try:
            try:
                _follow(attempt.course())
                for _, hold in attempt.parts():
                    hold._state.task = hold._state.task or task
                if attempt.busy is not None:
                    self._undo(attempt)
            except Exception:
                self._undo(attempt)
                raise
        except BaseException:
            # Interrupted, perhaps during that rollback; holds released so far are marked as released.
            self._undo(attempt)
            raise
        # No call here: an interruption at its start would leave locks held that no caller knows of.
        return attempt

    def _undo(self, attempt: Attempt[Hold]) -> None:
        # Report only the original error: a hold that is lost, or not released on every node, is over anyway.
        with suppress(RedsyncError):
            release_all(attempt.won())

    def release(self) -> None:
        """Release one acquisition of each lock, in reverse order; an error does not stop the others.

        Raises:
            NotOwnedError: The owner does not hold all of them; nothing changed.
            LeaseLostError: The owner held them, but had lost one; if several, the error carries the others as notes.
        """
        release_all(self._own())

    def __enter__(self) -> MultiHold:
        """Acquire all locks; wait at most for the `timeout` option in total, without limit by default.

        Raises:
            AcquireTimeout: Other owners held one of them throughout; the error has that lock's name.
            QuorumError: Too few nodes of one lock answered before the timeout.
            LeaseLostError: As for `acquire`.
        """
        attempt = self._acquire(self._timeout)
        if attempt.busy is not None:
            raise AcquireTimeout(attempt.busy.name, self._timeout or 0.0)
        hold = None
        try:
            hold = MultiHold(attempt.won())
            self._enter(hold, statement())
        except BaseException:
            # Interrupted: unless `__enter__` returns, Python does not call `__exit__`.
            self._undo(attempt)
            if hold is not None:
                with suppress(RedsyncError):
                    self._leave(hold)
            raise
        return hold

    def _leave(self, hold: MultiHold | None) -> None:
        if hold is None:
            self.release()
            return
        errors: list[BaseException] = []
        parts = zip(reversed(self._locks), reversed(hold._holds), strict=True)
        do_each((partial(lock._leave, part) for lock, part in parts), errors)
        self._forget(hold)
        raise_first(errors)

    # The interface that threading.Condition needs.

    def _is_owned(self) -> bool:
        return all(lock._is_owned() for lock in self._locks)

    def _release_save(self) -> list[Saved]:
        saved, held = [lock._save() for lock in self._locks], list(zip(self._locks, self._own(), strict=True))
        errors: list[BaseException] = []
        try:
            do_each(self._releases(held), errors)
        except BaseException:
            # No other call will finish the work: the condition's wait has not begun.
            do_each(self._releases(held), errors)
            raise
        raise_first(errors)
        return saved

    @staticmethod
    def _releases(parts: Sequence[tuple[Exclusive[Any, Hold], Hold]]) -> Iterator[Callable[[], None]]:
        """Yield calls that release all remaining acquisitions of each hold, in reverse order."""
        for lock, state in reversed([(lock, hold._state) for lock, hold in parts]):
            if state.count:
                yield partial(lock._runner.run, lock._release_steps(state, state.count))

    def _acquire_restore(self, saved: Sequence[Saved]) -> None:
        attempt: Attempt[Hold] = Attempt(self._locks, saved=dict(zip(self._locks, saved, strict=True)))
        try:
            try:
                _follow(attempt.course())
            except Exception:
                do_each(self._releases(attempt.parts()), [])
                raise
        except BaseException:
            # Interrupted, perhaps during that rollback.
            do_each(self._releases(attempt.parts()), [])
            raise
        for lock, hold in zip(self._locks, attempt.won(), strict=True):
            lock._restore(hold)

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
