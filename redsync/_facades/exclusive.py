"""What locks and mutexes have in common: acquire, release, `with`, looks; for threads. `exclusive_async` is its twin.

An object stands for a name; a hold belongs to an owner, and the kinds differ in who that is. The decisions are in
`redsync._protocols`; this module has only what callers touch.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias

from redsync._core.claims import ClaimKind
from redsync._core.effects import Steps
from redsync._core.holds import HoldState
from redsync._core.keys import LockKeys, encode_name
from redsync._core.ownership import Owner
from redsync._core.runner import AnyHost, Runner, RunnerT_co
from redsync._core.timing import check_timeout
from redsync._facades.claimable import Claimable, HoldT, ThreadClaimable
from redsync._facades.hold import Hold
from redsync._protocols.acquire_requests import AcquireRequest, Outcome
from redsync._protocols.holding import check, release
from redsync._protocols.places import Arrival, Place
from redsync.exceptions import NotOwnedError

__all__ = ["Exclusive", "ExclusiveLock", "Saved"]


Saved: TypeAlias = tuple[int, float | None]
"""The acquisitions that an owner gave back to wait for a condition: how many, and their lease (None: the usual one)."""


class Exclusive(Claimable[RunnerT_co, HoldT]):
    """A lock that one owner at a time holds, over all nodes of a client: everything that needs no waiting."""

    _KIND: ClassVar[ClaimKind]
    _OWNER: ClassVar[str]
    _QUEUE: ClassVar[type[Place]] = Arrival

    def __init__(
        self,
        host: AnyHost[RunnerT_co],
        name: str | bytes,
        *,
        timeout: float | None = None,
        lease: float | None = None,
        max_hold: float | None = None,
        on_lost: Callable[[HoldT], object] | None = None,
    ) -> None:
        self._set_up(host, timeout, lease, max_hold, on_lost)
        self._name = name
        self._keys = LockKeys.of(host.prefix, encode_name(name), self._KIND.mode)

    @property
    def name(self) -> str | bytes:
        """The lock's name, as it was given."""
        return self._name

    def owned(self) -> bool:
        """Return whether the owner holds the lock validly now."""
        state = self._state()
        return state is not None and state.valid(self._runner.now())

    def hold_count(self) -> int:
        """Return how many acquisitions the owner has to release; 0 if it does not hold the lock validly."""
        state = self._state()
        return state.count if state is not None and state.valid(self._runner.now()) else 0

    def remaining(self) -> float:
        """Return for how many seconds the owner's hold may be believed, 0.0 if there is none."""
        state, now = self._state(), self._runner.now()
        return state.valid_until - now if state is not None and state.valid(now) else 0.0

    # What tells the kinds apart.

    @abstractmethod
    def _claimant(self) -> Owner:
        """Return the owner that acquires."""

    @abstractmethod
    def _state(self) -> HoldState | None:
        """Return the hold that this object's methods refer to when this thread or task calls them."""

    # What both flavours run.

    def _request(self, timeout: float | None, lease: float | None, count: int) -> AcquireRequest:
        return AcquireRequest(
            self._name,
            self._KIND,
            self._keys,
            self._claimant(),
            Outcome(),
            self._lease if lease is None else self._runner.session.timing.check_lease(lease),
            timeout,
            self._max_hold,
            self._tell_lost,
            count,
            self._QUEUE,
        )

    def _release_steps(self, state: HoldState, count: int) -> Steps[None]:
        return release(self._runner.session, state, self._runner.now(), count, self._tell_lost)

    def _undo_steps(self, state: HoldState, count: int) -> Steps[None]:
        return self._release_steps(state, count)

    def _holder_steps(self) -> Steps[str | None]:
        # A look has an owner of its own: a refused release is sent again behind it, but not behind its owner's next
        # claim.
        from redsync._protocols import lock_survey

        runner = self._runner
        return lock_survey.holder(runner.session, self._name, self._keys, runner.new_owner())

    def _force_steps(self) -> Steps[bool]:
        from redsync._protocols import lock_survey

        runner = self._runner
        return lock_survey.force_release(runner.session, self._KIND, self._name, self._keys, runner.owner())

    def _own(self) -> HoldState:
        state = self._state()
        if state is None:
            self._runner.require_open()
            raise NotOwnedError(self._name, f"lock {self._name!r} is not held by {self._OWNER}")
        return state

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._host, self._name), {"options": self._options()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(self._host, self._name, **state["options"])  # type: ignore[misc]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name!r}>"


# Its methods come from those of AsyncExclusiveLock: change those, then run `make twins`.
class ExclusiveLock(Exclusive[Runner, Hold], ThreadClaimable[Hold]):
    """Acquire, release and `with`, for threads."""

    _HOLD = Hold

    def acquire(self, blocking: bool = True, timeout: float | None = -1, *, lease: float | None = None) -> bool:
        """Take the lock; return whether it is held now. The contract is that of `threading.RLock`.

        Args:
            blocking: Whether to wait while others hold it.
            timeout: The longest wait in seconds; -1 or None for no limit.
            lease: Seconds for which the nodes keep the claim, unrenewed; None: the lock's or client's lease, the latter
                renewed by the watchdog. A nested acquire inherits the outermost one's renewal.

        Raises:
            QuorumError: Too few nodes answered: at once if not blocking, else when the timeout is over.
            LeaseLostError: The owner held the lock already, and that hold was lost.
            KeyTypeError: The key holds a value of another type.
            ValueError: Arguments that contradict each other, or a lease that no claim can live on.
        """
        return self._acquire(check_timeout(blocking, timeout), lease) is not None

    def release(self) -> None:
        """Give one acquisition back.

        Raises:
            NotOwnedError: The owner does not hold the lock; nothing was changed.
            LeaseLostError: The owner held the lock, and lost it before.
        """
        self._runner.give_back(self._release_steps(self._own(), 1))

    def _give_back(self, holds: int) -> None:
        self._runner.give_back(self._release_steps(self._own(), holds))

    def locked(self) -> bool:
        """Return whether anyone holds the lock on a quorum of nodes; an instant later that may have changed.

        Raises:
            QuorumError: Too few nodes answered to tell.
        """
        return self._runner.run(self._holder_steps()) is not None

    def extend(self, lease: float | None = None) -> None:
        """Lengthen the owner's hold now, see `Hold.extend`.

        Raises:
            NotOwnedError: The owner does not hold the lock.
            LeaseLostError: Its hold was lost.
            QuorumError: Too few nodes answered; the hold stays as it was.
        """
        Hold(self._host, self._own()).extend(lease)

    def force_release(self) -> bool:
        """Take the lock away from its holder, for the next waiter; return whether it was held.

        The former holder learns of it from its next renewal, at the latest when its lease ends: until then two may
        believe. For operators, not for programs.

        Raises:
            QuorumError: Too few nodes answered; those that did have freed it.
            KeyTypeError: The key holds a value of another type.
        """
        return self._runner.run(self._force_steps())

    # What threading.Condition asks of a lock.

    def _is_owned(self) -> bool:
        state = self._state()
        if state is not None:
            # Check here, where nobody waits yet: an error of a release would leave a false waiter in the condition.
            self._runner.run(check(state, self._runner.now()))
        return state is not None

    def _release_save(self) -> Saved:
        saved = self._save()
        self._give_back(saved[0])
        return saved

    def _acquire_restore(self, saved: Saved) -> None:
        count, lease = saved
        self._restore(self._acquire(None, lease, count))

    def _save(self) -> Saved:
        """Return what `_acquire_restore` needs to acquire the owner's present holds again."""
        state = self._own()
        return state.count, None if state.renewed else state.lease

    def _restore(self, again: Hold | None) -> None:
        """Make the objects returned by this object's open `with` statements stand for the owner's new hold."""
        if again is not None:
            for hold in self._entered_of(self._runner.owner()):
                hold._state = again._state
