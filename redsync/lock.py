"""The reentrant lock.

```python
lock = client.get_lock("report:2026")
with lock as hold:  # waits; the body never runs without the lock
    write_report()
    hold.check()  # LeaseLostError if the lock is not ours any more
```

The decisions are in `redsync._protocols.lock`; here is only what callers touch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from redsync._core.effects import Steps
from redsync._core.holds import HoldState
from redsync._core.keys import LockKeys, encode_name
from redsync._core.quorum import Vote
from redsync._core.runner import Host
from redsync._core.timing import check_timeout
from redsync._protocols import lock as protocol
from redsync._protocols import lock_survey
from redsync._protocols.lease import wait_end
from redsync.exceptions import AcquireTimeout, LeaseLostError, NotOwnedError, RedsyncError

__all__ = ["Hold", "Holder", "Lock", "LockInfo"]


class Hold:
    """One acquisition of a lock: what `with lock as hold` gives, to look at and to hand on.

    Valid until it is released, or lost; a lost hold never becomes valid again. All methods may be called from any
    thread, also from one that does not own the lock.
    """

    def __init__(self, host: Host, state: HoldState) -> None:
        self._host = host
        self._state = state
        self._released = False
        self._lost_at_release = False

    @property
    def name(self) -> str | bytes:
        """The lock's name."""
        return self._state.name

    @property
    def owner(self) -> str:
        """Who holds: `<client uuid>:<thread serial>`, as the nodes store it."""
        return str(self._state.owner)

    @property
    def fencing_token(self) -> int | None:
        """The token of a fenced lock; None for other locks."""
        return self._state.fencing_token

    @property
    def lost(self) -> bool:
        """Whether the hold ended before it was released. Exact at any time, also when no node answers."""
        if self._released:
            return self._lost_at_release
        return self._state.ended(self._host.runner.now())

    def remaining(self) -> float:
        """Return for how many seconds the hold may still be believed, 0.0 if not at all.

        The watchdog moves the end on while it renews the hold.
        """
        now = self._host.runner.now()
        return self._state.valid_until - now if not self._released and self._state.valid(now) else 0.0

    def check(self) -> None:
        """Return if the lock is still held.

        Raises:
            LeaseLostError: It was lost.
            NotOwnedError: This hold was released.
        """
        self._refuse_released()
        runner = self._host.runner
        runner.run(protocol.check(self._state, runner.now()))

    def wait_lost(self, timeout: float | None = None) -> bool:
        """Sleep until the hold is lost or released; return whether it was lost.

        Args:
            timeout: The longest wait in seconds; None for no limit.
        """
        runner = self._host.runner
        now = runner.now()
        wait = check_timeout(True, timeout)
        runner.run(wait_end(self._state, lambda: self._released, now, wait))
        return self.lost

    def extend(self, lease: float | None = None) -> None:
        """Lengthen the hold now, on a quorum of nodes; never shortens it.

        Args:
            lease: For how many seconds from now; None for the lease it was acquired with.

        Raises:
            LeaseLostError: It was lost.
            QuorumError: Too few nodes answered; the hold stays as it was.
            ValueError: The lease is not a number of seconds a claim can live on.
        """
        self._refuse_released()
        runner = self._host.runner
        if lease is not None:
            lease = runner.session.timing.check_lease(lease)
        runner.run(protocol.extend(runner.session, self._state, lease, runner.now()))

    def release(self) -> None:
        """Give this acquisition back; the lock is free when the last of its owner's has been given back.

        Raises:
            LeaseLostError: It was lost before.
            NotOwnedError: It was released before.
        """
        self._host.runner.run(self._release_steps())

    def _release_steps(self) -> Steps[None]:
        # Steps are atomic, so of two threads that release the same hold one gets the error.
        self._refuse_released()
        self._released = True
        runner = self._host.runner
        try:
            yield from protocol.release(runner.session, self._state, runner.now())
        except LeaseLostError:
            self._lost_at_release = True
            raise

    def _refuse_released(self) -> None:
        if self._released or not self._state.count:
            raise NotOwnedError(self._state.name, f"this hold of lock {self._state.name!r} was released already")

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a hold belongs to the process that acquired it: pickle the lock instead")

    def __repr__(self) -> str:
        condition = "released" if self._released else "lost" if self.lost else f"valid for {self.remaining():.1f} s"
        return f"<Hold of {self._state.name!r} by {self._state.owner}, {condition}>"


class Lock:
    """A reentrant lock over all nodes of a client, owned by the thread that acquired it.

    At any instant at most one owner believes to hold it, as long as clocks run at rates within `drift_factor`; an
    owner believes until its `remaining()` is 0. It stays available while a quorum of nodes answers, and becomes free by
    itself within one lease when its holder dies. Acquire it as often as you like in one thread; release it as often.

    Without a lease the watchdog renews it for as long as the thread holds it. With a lease it ends when the lease does.

    Algorithm: Redlock with the reentrant layout of Redisson's RLock. Made by `Client.get_lock`.
    """

    def __init__(
        self,
        host: Host,
        name: str | bytes,
        *,
        timeout: float | None = None,
        lease: float | None = None,
        max_hold: float | None = None,
        on_lost: Callable[[Hold], object] | None = None,
    ) -> None:
        self._host = host
        self._name = name
        self._keys = LockKeys.of(host.prefix, encode_name(name))
        self._timeout = check_timeout(True, timeout)
        self._lease = None if lease is None else host.runner.session.timing.check_lease(lease)
        self._max_hold = None if max_hold is None else host.runner.session.timing.check_lease(max_hold)
        self._on_lost = on_lost
        self._runner = host.runner
        self._crowded = False
        # The holds that `with` statements have open, by owner, innermost last: a thread touches its own list only.
        self._entered: dict[Any, list[Hold]] = {}

    @property
    def name(self) -> str | bytes:
        """The lock's name, as it was given."""
        return self._name

    def acquire(self, blocking: bool = True, timeout: float | None = -1, *, lease: float | None = None) -> bool:
        """Take the lock; return whether it is held now. The contract is that of `threading.RLock`.

        Args:
            blocking: Whether to wait while others hold it.
            timeout: The longest wait in seconds; -1 or None for no limit.
            lease: For how many seconds the nodes keep the claim, unrenewed; None: the lock's or client's lease, the
                latter renewed by the watchdog. A nested acquire inherits the outermost one's renewal.

        Raises:
            QuorumError: Too few nodes answered: at once when not blocking, else when the timeout is over.
            LeaseLostError: This thread held it already, and that hold was lost.
            KeyTypeError: The key holds a value of another type.
            ValueError: Arguments that contradict each other, or a lease that no claim can live on.
        """
        return self._acquire(check_timeout(blocking, timeout), lease) is not None

    def _acquire(self, timeout: float | None, lease: float | None = None, count: int = 1) -> HoldState | None:
        runner = self._runner
        session = runner.session
        demand = protocol.Demand(
            self._name,
            self._keys,
            runner.owner(),
            self._lease if lease is None else session.timing.check_lease(lease),
            timeout,
            self._max_hold,
            None if self._on_lost is None else self._tell_lost,
            count,
            self._crowded,
        )
        state = runner.run(protocol.acquire(session, demand, runner.now()))
        # A guess for the next time, good enough unguarded: whoever had to queue now asks for a place at once.
        self._crowded = state is None or state.queued
        return state

    def _tell_lost(self, state: HoldState) -> None:
        assert self._on_lost is not None
        self._on_lost(Hold(self._host, state))

    def release(self) -> None:
        """Give one acquisition of this thread back.

        Raises:
            NotOwnedError: This thread does not hold it; nothing was changed.
            LeaseLostError: It held it, and lost it before.
        """
        self._give_back(1)

    def _give_back(self, holds: int) -> None:
        runner = self._runner
        runner.run(protocol.release(runner.session, self._own(), runner.now(), holds))

    def _own(self) -> HoldState:
        state = self._state()
        if state is None:
            self._runner.require_open()
            raise NotOwnedError(self._name, f"lock {self._name!r} is not held by this thread")
        return state

    def _state(self) -> HoldState | None:
        runner = self._runner
        return runner.session.holds.get(self._keys.lock, runner.owner())

    def __enter__(self) -> Hold:
        """Acquire the lock, waiting for its `timeout` option; for ever by default.

        Raises:
            AcquireTimeout: Others held it all the time.
            QuorumError: Too few nodes answered until the timeout.
        """
        state = self._acquire(self._timeout)
        if state is None:
            raise AcquireTimeout(self._name, self._timeout or 0.0)
        hold = Hold(self._host, state)
        self._entered.setdefault(state.owner, []).append(hold)
        return hold

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Release the acquisition of `__enter__`, unless it was released inside.

        Raises:
            LeaseLostError: It was lost.
            NotOwnedError: It was released inside by `release()` of the lock; or this is the child of a fork.
            ClientClosedError: The client was closed inside.

        If the body raised, its own error comes out, and carries a note instead.
        """
        owner = self._runner.owner()
        holds = self._entered.get(owner)
        try:
            # Without an `__enter__` by this thread it is a plain release; so it is in the child of a fork.
            hold = holds.pop() if holds else None
            if not holds:
                self._entered.pop(owner, None)
            if hold is None or not hold._released:
                self.release()
            if hold is not None:
                hold._released = True
        except RedsyncError as problem:
            if error is None:
                raise
            error.add_note(f"redsync: {problem}")

    def locked(self) -> bool:
        """Return whether anyone holds the lock on a quorum of nodes; an instant later that may have changed.

        Raises:
            QuorumError: Too few nodes answered to tell.
        """
        runner = self._runner
        return runner.run(lock_survey.holder(runner.session, self._name, self._keys, runner.owner())) is not None

    def owned(self) -> bool:
        """Return whether this thread holds the lock, now and validly."""
        state = self._state()
        return state is not None and state.valid(self._runner.now())

    def hold_count(self) -> int:
        """Return how many acquisitions this thread has to release; 0 if it does not hold the lock validly."""
        state = self._state()
        return state.count if state is not None and state.valid(self._runner.now()) else 0

    def remaining(self) -> float:
        """Return for how many seconds this thread's hold may be believed, 0.0 if there is none."""
        state, now = self._state(), self._runner.now()
        return state.valid_until - now if state is not None and state.valid(now) else 0.0

    def extend(self, lease: float | None = None) -> None:
        """Lengthen this thread's hold now, see `Hold.extend`.

        Raises:
            NotOwnedError: This thread does not hold the lock.
            LeaseLostError: Its hold was lost.
            QuorumError: Too few nodes answered; the hold stays as it was.
        """
        Hold(self._host, self._own()).extend(lease)

    def force_release(self) -> bool:
        """Take the lock away from whoever holds it and wake a waiter; return whether it was held.

        The former holder is told by its next renewal, at the latest when its lease ends: until then two may believe.
        For operators, not for programs.

        Raises:
            QuorumError: Too few nodes answered; those that did have freed it.
            KeyTypeError: The key holds a value of another type.
        """
        runner = self._runner
        return runner.run(lock_survey.force_release(runner.session, self._name, self._keys, runner.owner()))

    # What threading.Condition asks of a reentrant lock.

    def _is_owned(self) -> bool:
        return self.owned()

    def _release_save(self) -> tuple[int, float | None]:
        state = self._own()
        saved = state.count, None if state.renewed else state.lease
        self._give_back(state.count)
        return saved

    def _acquire_restore(self, saved: tuple[int, float | None]) -> None:
        count, lease = saved
        state = self._acquire(None, lease, count)
        for hold in self._entered.get(self._runner.owner(), ()):
            # What `with` gave out stands for this thread's hold, across the waits of a condition.
            hold._state = state or hold._state

    def __reduce__(self) -> tuple[Any, ...]:
        options = {
            "timeout": self._timeout,
            "lease": self._lease,
            "max_hold": self._max_hold,
            "on_lost": self._on_lost,
        }
        return type(self), (self._host, self._name), {"options": options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(self._host, self._name, **state["options"])  # type: ignore[misc]

    def __repr__(self) -> str:
        return f"<Lock {self._name!r}>"


@dataclass(frozen=True, slots=True)
class Holder:
    """One owner of a lock as a quorum of nodes knows it.

    Attributes:
        owner: `<client uuid>:<thread serial>`.
        host: The machine it runs on, None if unknown.
        pid: Its process, None if unknown.
        hold_count: How many acquisitions it has to release.
        remaining: For how many seconds a quorum of nodes keeps its claim unless it is renewed; None: no expiry.
    """

    owner: str
    host: str | None
    pid: int | None
    hold_count: int
    remaining: float | None


@dataclass(frozen=True, slots=True)
class LockInfo:
    """Who holds a lock and who waits for it.

    Attributes:
        name: The lock's name.
        kind: "lock", "none" if nothing is at its key, or the type of a foreign value.
        holders: Who holds it on a quorum of nodes.
        waiters: Who waits on any node, longest first.
        votes: What each node said.
    """

    name: str | bytes
    kind: str
    holders: tuple[Holder, ...]
    waiters: tuple[str, ...]
    votes: tuple[Vote, ...]
