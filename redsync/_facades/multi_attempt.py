"""One attempt of a multi-lock to acquire its locks, for both flavours: which to acquire next, and which to release.

A multi-lock acquires its locks in the order of their keys, regardless of the order of the arguments. So among owners
that wait for each other, one always holds the last lock of all, and continues.

**Tied locks**, or twins, share one key on the nodes of different clients. Programs share no common order of twins: a
node has many URLs; a server's identity changes when it restarts, and its data is gone when it is emptied; and a server
that is down reports nothing. Two programs with opposite orders could wait for each other forever. So the attempt
relies on no order: while it holds a tied lock, it tries each twin only once. If one is busy, it releases all of them,
and waits for the busy one first, after a random pause that keeps two programs from colliding again and again. So a
waiting owner holds only locks with smaller keys, and the argument above needs only the keys.

Twins that turn out to be the same lock, because their nodes report the same servers, are an error.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Any, Generic, TypeAlias

from redsync._core.effects import Steps, Wait, wait
from redsync._core.holds import HoldState
from redsync._core.interruptions import is_interruption
from redsync._core.timing import retry_delay
from redsync._facades.claimable import HoldT
from redsync._facades.exclusive import Exclusive, Saved
from redsync._protocols.acquire_requests import Outcome
from redsync.exceptions import ConfigurationError, KeyTypeError, QuorumError, RedsyncError

__all__ = ["Attempt", "Course"]

_INSTANT = 1e-6
"""The timeout in seconds after the deadline: one try, shorter than with a timeout of 0."""


Course: TypeAlias = Generator[tuple[Exclusive[Any, Any], Steps[Any]] | None, Any, None]
"""Yields protocols, each with the lock whose runner runs it; gets the result or the error. Yields None at the end."""


class Attempt(Generic[HoldT]):
    """One attempt to acquire all locks; it can release everything at any point.

    Attributes:
        busy: The lock that other owners held throughout; None if there was none.
    """

    __slots__ = ("_deadline", "_holds", "_lease", "_locks", "_now", "_outcomes", "_saved", "_timeout", "busy")

    def __init__(
        self,
        locks: Sequence[Exclusive[Any, HoldT]],
        timeout: float | None = None,
        lease: float | None = None,
        saved: Mapping[Exclusive[Any, HoldT], Saved] | None = None,
    ) -> None:
        """Make an attempt; `saved` has the acquisitions to make of each lock; None for one of each."""
        self._locks = locks
        self._now = locks[0]._runner.now
        self._timeout = timeout
        self._deadline = self._now() + (timeout or 0.0)
        self._lease = lease
        self._saved = saved or {}
        self._outcomes: dict[Exclusive[Any, HoldT], Outcome] = {}
        self._holds: dict[Exclusive[Any, HoldT], HoldT] = {}
        self.busy: Exclusive[Any, HoldT] | None = None

    def course(self) -> Course:
        """Acquire the locks until one fails; the attempt records each success.

        Raises:
            LeaseLostError: An acquired lock was lost while the attempt waited for another one.
            ConfigurationError: Two of the locks are the same lock.
        """
        for _, group in groupby(self._locks, lambda lock: lock._keys.lock):
            tied, failures = list(group), 0
            while (busy := (yield from self._take(tied))) is not None:
                if busy is tied[0] or self._is_over():
                    self.busy = busy
                    yield None
                yield from self._give_back(tied)
                failures += 1
                pause = self._now() + retry_delay(failures, busy._runner.session.random())
                yield busy, wait(Wait(pause if self._timeout is None else min(pause, self._deadline)))
                tied.sort(key=lambda lock: lock is not busy)
        yield None

    def _take(self, tied: Sequence[Exclusive[Any, HoldT]]) -> Generator[Any, Any, Exclusive[Any, HoldT] | None]:
        """Acquire tied locks, waiting only for the first; return the busy one, None if there is none."""
        for lock in tied:
            waits = lock is tied[0]
            try:
                state = yield lock, self._bid_steps(lock, waits=waits)
            except (QuorumError, KeyTypeError) as error:
                if is_interruption(error):
                    raise
                _refuse_twins(lock, tied)
                if waits or self._is_over() or isinstance(error, KeyTypeError):
                    raise
                state = None
            self._check_won()
            _refuse_twins(lock, tied)
            if state is None:
                return lock
        return None

    def _bid_steps(self, lock: Exclusive[Any, HoldT], *, waits: bool) -> Steps[HoldState | None]:
        left = max(self._deadline - self._now(), _INSTANT) if self._timeout else self._timeout
        count, lease = self._saved.get(lock, (1, self._lease))
        request = lock._request(left if waits else 0.0, lease, count)
        self._outcomes[lock] = request.outcome
        session = lock._runner.session
        begin = lock._observed_steps if session.observed else lock._acquire_steps
        return begin(session, request, lock._runner.now())

    def _check_won(self) -> None:
        holds: list[Any] = self.won()
        for hold in holds:
            if hold.lost:
                hold.check()

    def _give_back(self, tied: Sequence[Exclusive[Any, HoldT]]) -> Generator[Any, Any, None]:
        for lock, hold in self.parts():
            if lock in tied:
                state = hold._state
                # A hold that is lost, or not released on every node, is over anyway.
                with suppress(RedsyncError):
                    yield lock, lock._release_steps(state, state.count) if self._saved else hold._release_steps()
        for lock in tied:
            self._outcomes.pop(lock, None)
            self._holds.pop(lock, None)

    def _is_over(self) -> bool:
        return self._timeout is not None and self._now() >= self._deadline

    def parts(self) -> list[tuple[Exclusive[Any, HoldT], HoldT]]:
        """Return each acquired lock and hold, even those that no call has returned yet, in the order of the locks."""
        for lock, outcome in self._outcomes.items():
            if outcome.state is not None and lock not in self._holds:
                self._holds[lock] = lock._HOLD(lock._host, outcome.state, lock._tell_lost)
        return [(lock, self._holds[lock]) for lock in self._locks if lock in self._holds]

    def won(self) -> list[HoldT]:
        """Return the acquired holds, in the order of the locks."""
        return [hold for _, hold in self.parts()]


def _refuse_twins(lock: Exclusive[Any, Any], tied: Sequence[Exclusive[Any, Any]]) -> None:
    """Raise if a lock is the same as one of its twins, to the extent that their clients are connected."""
    if any(other is not lock and lock._runner.servers() & other._runner.servers() for other in tied):
        raise ConfigurationError(
            f"lock {lock.name!r} is given twice: nodes of two clients are the same servers under different addresses"
        )
