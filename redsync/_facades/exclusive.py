"""The common base of locks and mutexes: acquire, release, `with`, queries; for threads and for asyncio.

An object stands for a name; a hold belongs to an owner, and each kind has its own owners. `redsync._protocols` makes
the decisions; this module has only the interface.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, NamedTuple, Unpack
from weakref import ReferenceType

from redsync._core.effects import Steps
from redsync._core.holds import HoldState
from redsync._core.keys import LockKeys, encode_name
from redsync._core.observing import is_function
from redsync._core.session import AnyHost, AsyncRunner, Runner, RunnerT_co
from redsync._core.timing import check_timeout, finite, retry_delay
from redsync._facades.claimable import (
    Acquire,
    Claimable,
    HoldOptions,
    HoldT,
    LockOptions,
    TaskClaimable,
    ThreadClaimable,
)
from redsync._facades.hold import AsyncHold, Hold
from redsync._protocols import lock as protocol
from redsync._protocols import surveys
from redsync._protocols.claims import LEFT_TO_USE, AcquireRequest
from redsync._protocols.holding import check, release
from redsync._protocols.queue_policies import NoQueue
from redsync.exceptions import NotOwnedError, ReentrantCallError

__all__ = ["AsyncExclusiveLock", "Exclusive", "ExclusiveLock", "Polling", "Saved"]


class Saved(NamedTuple):
    """The hold that an owner released to wait for a condition.

    Attributes:
        acquisitions: How often it was acquired.
        lease: Its lease; None for the default lease.
        state: The hold itself.
        on_lost: Its callbacks, which its release may have cleared.
    """

    acquisitions: int
    lease: float | None
    state: HoldState
    on_lost: tuple[Callable[[HoldState], object], ...]


class Exclusive(Claimable[RunnerT_co, HoldT]):
    """A lock over all nodes of a client, held by one owner at a time: the methods that do not wait.

    Unless a kind differs, the owner is the thread or task; it may acquire the lock repeatedly, and must release it as
    often.
    """

    _KIND = protocol.LOCK
    _OWNER: ClassVar[str]
    _acquire_steps: Acquire = staticmethod(protocol.acquire)

    def __init__(
        self,
        host: AnyHost[RunnerT_co],
        name: str | bytes,
        *,
        min_hold: float | None = None,
        **options: Unpack[HoldOptions[HoldT]],
    ) -> None:
        self._set_up(host, name, **options)
        self._options["min_hold"] = min_hold
        self._min_hold = None if min_hold is None else self._runner.session.timing.check_lease(min_hold, "min_hold")
        self._check_min_hold(self._lease)
        self._claimant = self._runner.owner
        self._keys = LockKeys.of(host.prefix, name if name.__class__ is str else encode_name(name), self._KIND.mode)

    def _check_min_hold(self, lease: float | None) -> None:
        """Raise if a hold may end before `min_hold` is over: by its own lease, or by `max_hold`.

        A hold that was handed over may have spent a tenth of its lease.
        """
        if (shortest := self._min_hold) is None:
            return
        believed = lease and self._runner.session.timing.valid_until(0.0, lease) * LEFT_TO_USE
        for limit, until in ("nine tenths of lease", believed), ("max_hold", self._max_hold):
            if until is not None and shortest >= until:
                raise ValueError(
                    f"min_hold of {shortest:g} s is not shorter than {limit}, after which the hold may end"
                )

    def _request(self, timeout: float | None, lease: float | None, count: int) -> AcquireRequest:
        request = super()._request(timeout, lease, count)
        if self._min_hold is not None and request.keys.hold not in request.owner.holds:
            self._check_min_hold(request.lease)
        return request

    def _note_success(self, state: HoldState, request: AcquireRequest) -> None:
        if self._min_hold is not None and not request.nested:
            state.keep_until = self._runner.now() + self._min_hold

    def owned(self) -> bool:
        """Return True while the owner has a valid hold."""
        state = self._state()
        return state is not None and state.valid(self._runner.now())

    def hold_count(self) -> int:
        """Return how many acquisitions the owner has yet to release; 0 without a valid hold."""
        state = self._state()
        return state.count if state is not None and state.valid(self._runner.now()) else 0

    def remaining(self) -> float:
        """Return for how many seconds the owner's hold stays valid, 0.0 if it has none."""
        state, now = self._state(), self._runner.now()
        return state.valid_until - now if state is not None and state.valid(now) else 0.0

    # The differences between the kinds.

    def _state(self) -> HoldState | None:
        """Return the hold that this object's methods refer to in the calling thread or task."""
        return self._runner.owner().holds.get(self._keys.hold)

    def _refuse_other_task(self, task: ReferenceType[Any]) -> None:
        for state in list(self._runner.owner().holds.values()):  # A reader may also have the write lock.
            other = state.task and state.keys.lock == self._keys.lock and state.task()
            if other and other is not task() and not other.done():
                raise ReentrantCallError(
                    f"{self._KIND.label} {self._name!r} is held by another task of this thread, which is one owner for "
                    f"a Client: both tasks would be inside. With asyncio use AsyncClient, whose locks belong to tasks"
                )

    def _may_release(self, hold: HoldT) -> bool:
        """Return True if leaving the `with` that returned `hold`, which has ended, releases the current hold."""
        return hold._entered_by is self._runner.owner()

    def _may_end(self, hold: HoldT) -> bool:
        state = self._state()
        return state is None or hold._state is state

    # The protocols of both flavours.

    def _release_steps(self, state: HoldState, count: int) -> Steps[None]:
        return release(self._runner.session, state, self._runner.clock(), count, self._tell_lost)

    def _leave_steps(self, hold: HoldT) -> Steps[None]:
        if not (hold._state.live or hold._ended) and self._may_release(hold):
            # The body may have released and acquired it again, and no other `with` will release that. It may also have
            # released it after a loss.
            present = self._state()
            if present.count > present.open_withs if present else hold._state.lost is None:
                return self._release_steps(self._own(), 1)
        return hold._let_go_steps()

    def _undo_steps(self, state: HoldState, request: AcquireRequest) -> Steps[None]:
        if request.nested:
            state.hurried = state.count == request.holds
        else:
            state.keep_until = -math.inf  # Its caller never had it.
        return self._release_steps(state, request.holds)

    def _held_steps(self) -> Steps[bool]:
        # A query has a new owner: a refused release may be sent again behind it, but not behind its own owner's next
        # command.
        runner = self._runner
        return surveys.is_held(runner.session, self._KIND, self._name, self._keys, runner.new_owner())

    def _force_steps(self) -> Steps[bool]:
        runner = self._runner
        return surveys.force_release(runner.session, self._KIND, self._name, self._keys, runner.owner())

    def _own(self) -> HoldState:
        state = self._state()
        if state is None:
            self._runner.require_open()
            raise NotOwnedError(self._name, f"{self._KIND.label} {self._name!r} is not held by {self._OWNER}")
        return state

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), **self._options), (self._host, self._name)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name!r}>"


class Polling(Exclusive[RunnerT_co, HoldT]):
    """A lock whose waiters may poll, with pauses of the caller's choice, instead of queueing."""

    _always_polls = False

    def __init__(
        self,
        host: AnyHost[RunnerT_co],
        name: str | bytes,
        *,
        backoff: Callable[[int], float] | None = None,
        **options: Unpack[LockOptions[HoldT]],
    ) -> None:
        if backoff is not None and not is_function(backoff):
            raise TypeError(f"backoff must be a function from the number of tries to seconds, not {backoff!r}")
        super().__init__(host, name, **options)
        self._options["backoff"] = backoff
        if self._always_polls or backoff is not None:
            # Not bound to the lock: a request must not keep a lock object alive that the program has dropped.
            self._queue = partial(NoQueue, partial(_pause, backoff, name))


def _pause(backoff: Callable[[int], float] | None, name: str | bytes, tries: int, random: float) -> float:
    """Return how many seconds to sleep after `tries` tries."""
    if backoff is None:
        return retry_delay(tries, random)
    seconds = finite(pause := backoff(tries))
    if seconds is None or seconds < 0:
        raise ValueError(f"the backoff of lock {name!r} must be a number of seconds, at least 0, not {pause!r}")
    return seconds


# Its methods come from those of AsyncExclusiveLock: change those, then run `make twins`.
class ExclusiveLock(Exclusive[Runner, Hold], ThreadClaimable[Hold]):
    """Acquire, release and `with`, for threads."""

    _HOLD = Hold
    _OWNER = "this thread"

    def acquire(self, blocking: bool = True, timeout: float | None = -1, *, lease: float | None = None) -> bool:
        """Acquire the lock; return True on success. The contract is that of `threading.RLock`.

        Args:
            blocking: Wait while another owner holds it; if False, try once.
            timeout: The longest wait in seconds; -1 or None for no limit.
            lease: Seconds for which the nodes keep the claim, unrenewed; None: the lock's or client's lease, the latter
                renewed by the watchdog. A nested acquire inherits the outermost one's renewal; its own lease extends.

        Raises:
            QuorumError: Too few nodes answered in the only try, or for the shorter of `timeout` and `outage_timeout`.
            LeaseLostError: The owner already held the lock, and that hold was lost.
            KeyTypeError: The key holds a value of another type.
            ValueError: The arguments contradict each other, or the lease is invalid.
        """
        return self._acquire(check_timeout(blocking, timeout), lease) is not None

    def release(self) -> None:
        """Release one acquisition; with `min_hold`, the last one waits until that is over.

        Raises:
            NotOwnedError: The owner does not hold the lock; nothing changed.
            LeaseLostError: The owner held the lock, but had lost it.
        """
        self._runner.give_back(self._release_steps(self._own(), 1))

    def _give_back(self, holds: int) -> None:
        self._runner.give_back(self._release_steps(self._own(), holds))

    def locked(self) -> bool:
        """Return True if any owner holds the lock on a quorum of nodes; the answer may be outdated at once.

        Raises:
            QuorumError: Too few nodes answered.
        """
        return self._runner.run(self._held_steps())

    def extend(self, lease: float | None = None) -> None:
        """Extend the owner's hold now, see `Hold.extend`.

        Raises:
            NotOwnedError: The owner does not hold the lock.
            LeaseLostError: Its hold was lost.
            QuorumError: Too few nodes answered; the hold is unchanged.
            ValueError: The lease is invalid.
        """
        Hold(self._runner, self._own()).extend(lease)

    def force_release(self) -> bool:
        """Take the lock from its holder and free it for the next waiter; return True if it was held.

        The former holder learns of this at its next renewal, at the latest when its lease ends. Until then two owners
        may believe that they hold the lock. For operators, not for programs.

        Raises:
            QuorumError: Too few nodes answered; those that did have freed it.
            KeyTypeError: The key holds a value of another type.
        """
        return self._runner.run(self._force_steps())

    # The interface that threading.Condition needs.

    def _is_owned(self) -> bool:
        state = self._state()
        if state is not None:
            # Check here, before anything waits: an error of a release would leave a false waiter in the condition.
            self._runner.run(check(state, self._runner.now()))
        return state is not None

    def _release_save(self) -> Saved:
        saved = self._save()
        self._give_back(saved.acquisitions)
        return saved

    def _acquire_restore(self, saved: Saved) -> None:
        self._restore(saved, self._acquire(None, saved.lease, saved.acquisitions))

    def _save(self) -> Saved:
        """Return the values that `_acquire_restore` needs to acquire the owner's current holds again."""
        state = self._own()
        return Saved(state.count, None if state.renewed else state.lease, state, tuple(state.on_lost))

    def _restore(self, saved: Saved, again: Hold | None) -> None:
        """Let the callbacks, and the hold objects that open `with` statements returned, be those of the new hold."""
        if again is not None:
            again._state.on_lost[:] = saved.on_lost
            for hold in list(saved.state.entered):  # Not `items`: garbage collected in between may change it.
                if (manager := saved.state.entered.get(hold)) is not None:
                    hold._state = again._state
                    hold._state.entered[hold] = manager


class AsyncExclusiveLock(Exclusive[AsyncRunner, AsyncHold], TaskClaimable[AsyncHold]):
    """Acquire, release and `async with`, for asyncio.

    Cancellation is safe at every await: a cancelled acquire leaves nothing on the nodes, a cancelled release still
    releases the lock, or leaves it to its lease while `min_hold` is not over.
    """

    _HOLD = AsyncHold
    _OWNER = "this task"

    async def acquire(self, blocking: bool = True, timeout: float | None = -1, *, lease: float | None = None) -> bool:
        """Acquire the lock; return True on success. See `Lock.acquire`."""
        return await self._acquire(check_timeout(blocking, timeout), lease) is not None

    async def release(self) -> None:
        """Release one acquisition. A cancelled release still takes effect, without waiting. See `Lock.release`."""
        await self._runner.run(self._release_steps(self._own(), 1))

    async def locked(self) -> bool:
        """Return True if any owner holds the lock on a quorum of nodes. See `Lock.locked`."""
        return await self._runner.run(self._held_steps())

    async def extend(self, lease: float | None = None) -> None:
        """Extend the owner's hold now. See `Lock.extend`."""
        await AsyncHold(self._runner, self._own()).extend(lease)

    async def force_release(self) -> bool:
        """Take the lock from its holder and free it for the next waiter. See `Lock.force_release`."""
        return await self._runner.run(self._force_steps())
