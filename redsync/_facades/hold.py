"""A hold: one acquisition of a lock or mutex, to inspect and to pass on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, Generic

from redsync._core.effects import Steps
from redsync._core.holds import HoldState, Owner
from redsync._core.session import AsyncRunner, Runner, RunnerT_co, Scope
from redsync._core.timing import check_timeout
from redsync._protocols import holding, renewal
from redsync.exceptions import LeaseLostError, NotOwnedError

__all__ = ["AnyHold", "AsyncHold", "Cancelling", "Entered", "Hold"]


class Entered(ABC):
    """The result of a `with` statement: it knows the statement's owner and place until that ends; see `Statement`."""

    _entered_by: Owner | None = None
    _entered_at: FrameType | Owner | None = None
    _entered_via = "with"

    def _is_left_by(self, owner: Owner) -> bool:
        """Return whether the owner ends the `with`: it is the first that asks."""
        # One step, so that of two owners that end what others entered, each ends another one.
        return vars(self).setdefault("_left_by", owner) is owner

    @abstractmethod
    def _note_released(self) -> None:
        """Record that the `with` is over."""


class AnyHold(Entered, Generic[RunnerT_co]):
    """The common base of holds of both flavours: the methods that do not wait."""

    _acquisitions = 1
    _lost_at_release = False
    _ended = False

    def __init__(
        self,
        runner: RunnerT_co,
        state: HoldState,
        on_lost: Callable[[HoldState], object] | None = None,
    ) -> None:
        self._runner = runner
        self._state = state
        self._on_lost = on_lost
        self._released = False

    @property
    def name(self) -> str | bytes:
        """The lock's name."""
        return self._state.name

    @property
    def owner(self) -> str:
        """The holder, `<client uuid>:<serial of the thread or task>`; for a mutex its value, for a permit its id."""
        return self._state.holder

    @property
    def fencing_token(self) -> int | None:
        """The token of a fenced lock; None for other locks."""
        return self._state.fencing_token

    @property
    def lost(self) -> bool:
        """True if the hold ended before its release. Asks no node; the end of the lease shows at once."""
        if self._released:
            return self._lost_at_release
        return self._state.ended(self._runner.now())

    def remaining(self) -> float:
        """Return for how many seconds the hold stays valid, 0.0 if it is not.

        Each renewal by the watchdog moves that end.
        """
        now = self._runner.now()
        return self._state.valid_until - now if not self._released and self._state.valid(now) else 0.0

    def _check_steps(self) -> Steps[None]:
        # Every check reports a loss, even after another object, or thread, released the hold.
        if not self.lost:
            self._refuse_released()
        return holding.check(self._state, self._runner.now())

    def _wait_steps(self, timeout: float | None) -> Steps[None]:
        now = self._runner.now()
        return holding.wait_end(self._state, lambda: self._released, now, check_timeout(True, timeout))

    def _extend_steps(self, lease: float | None) -> Steps[None]:
        if not self.lost:
            self._refuse_released()
        runner = self._runner
        if lease is not None:
            lease = runner.session.timing.check_lease(lease)
        return renewal.extend(runner.session, self._state, lease, runner.now())

    def _release_steps(self) -> Steps[None]:
        # Steps are atomic, so if two threads release the same hold, one of them gets the error.
        if self._released:
            self._refuse_released()
        yield from self._let_go_steps()

    def _let_go_steps(self) -> Steps[None]:
        """Release, even if the `with` is over: in a finalizer it may be over before the maintenance runs this."""
        if self._ended:
            return  # Another thread has released it since the caller looked.
        if not self._state.count:
            yield from self._check_steps()
        runner, released = self._runner, self._state.released
        self._released = self._ended = True
        try:
            yield from holding.release(runner.session, self._state, runner.clock(), self._share(), self._on_lost)
        except BaseException as error:
            if isinstance(error, LeaseLostError):
                self._lost_at_release = True
                raise
            # Interrupted, perhaps before anything was released: then it can still be released.
            self._released = self._ended = self._state.released > released
            raise

    def _share(self) -> int:
        """Return how many acquisitions a release of this hold ends."""
        return self._acquisitions

    def _note_released(self) -> None:
        """Record that the `with` that returned this hold is over."""
        # Another thread may have got the error, from the release that removed the hold from the client's table.
        if self._state.lost is not None:
            self._lost_at_release = True
        self._released = True
        self._state.entered.pop(self, None)

    def _refuse_released(self) -> None:
        if self._released or not self._state.count:
            raise NotOwnedError(self._state.name, f"{holding.what_of(self._state)} was released already")

    def __reduce__(self) -> tuple[Any, ...]:
        what, label = self._state.what, self._state.kind.label
        raise TypeError(f"a {what} belongs to the process that acquired it: pickle the {label} instead")

    def __repr__(self) -> str:
        condition = (
            "released"
            if self._released or not (self._state.live or self.lost)
            else "lost"
            if self.lost
            else f"valid for {self.remaining():.1f} s"
        )
        if self.fencing_token is not None:
            condition += f", token {self.fencing_token}"
        return f"<{type(self).__name__} of {self._state.name!r} by {self._state.holder}, {condition}>"


# Its methods come from those of AsyncHold: change those, then run `make twins`.
class Hold(AnyHold[Runner]):
    """One acquisition of a lock, from `with lock as hold`, to inspect and to pass on.

    Valid until it is released or lost; a lost hold never becomes valid again. Any thread may call any method, even if
    it does not own the lock.
    """

    def check(self) -> None:
        """Return if the lock is still held.

        Raises:
            LeaseLostError: The hold was lost.
            NotOwnedError: The hold was released.
        """
        self._runner.run(self._check_steps())

    def wait_lost(self, timeout: float | None = None) -> bool:
        """Sleep until the hold is lost or released; return True if it was lost.

        Args:
            timeout: The longest wait in seconds; None for no limit.
        """
        self._runner.run(self._wait_steps(timeout))
        return self.lost

    def extend(self, lease: float | None = None) -> None:
        """Extend the hold now, on a quorum of nodes; never shortens it.

        Args:
            lease: Seconds from now; None for the lease it was acquired with.

        Raises:
            LeaseLostError: The hold was lost.
            NotOwnedError: The hold was released.
            QuorumError: Too few nodes answered; the hold is unchanged.
            ValueError: The lease is invalid.
        """
        self._runner.run(self._extend_steps(lease))

    def release(self) -> None:
        """Release this acquisition; the lock is free once its owner has released all its acquisitions.

        Raises:
            LeaseLostError: The hold was lost.
            NotOwnedError: The hold was already released.
        """
        self._runner.give_back(self._release_steps())


class Cancelling(Entered):
    """Cancels the body of an `async with` when one of its holds is lost."""

    _scopes: Sequence[tuple[Scope, Sequence[HoldState], Callable[[HoldState], object]]] = ()

    def _watch(self, scope: Scope, states: Sequence[HoldState]) -> None:
        """Cancel the scope, once, when one of the holds is lost; a permit may have several, one in the other."""

        def cancel(_: HoldState) -> None:
            scope.cancel()

        for state in states:
            state.loss_callbacks.append(cancel)
        self._scopes = (*self._scopes, (scope, states, cancel))

    def _close_scope(self, error: BaseException | None) -> bool:
        """Stop cancelling the running task's innermost scope; a permit may have scopes of other tasks, too.

        Return True if a loss may propagate instead of `error`, see `Scope`.
        """
        if not self._scopes:
            return False
        # A task that has none closes a generator or coroutine that another task dropped.
        closed = next((each for each in reversed(self._scopes) if each[0].is_here()), self._scopes[-1])
        self._scopes = [each for each in self._scopes if each is not closed]
        scope, states, cancel = closed
        for state in states:
            state.loss_callbacks.remove(cancel)
        return scope.close(error)

    @abstractmethod
    def _check_loss(self) -> None:
        """Raise if the hold was lost, even if it was released since."""


class AsyncHold(AnyHold[AsyncRunner], Cancelling):
    """One acquisition of an async lock, from `async with lock as hold`, to inspect and to pass on.

    Valid until it is released or lost; a lost hold never becomes valid again. Any task of the client's event loop may
    call any method, even if it does not own the lock.
    """

    def check(self) -> None:
        """Return if the lock is still held. Not a coroutine: it asks no node. See `Hold.check`."""
        self._runner.run_at_once(self._check_steps())

    async def wait_lost(self, timeout: float | None = None) -> bool:
        """Sleep until the hold is lost or released; return True if it was lost. See `Hold.wait_lost`."""
        await self._runner.run(self._wait_steps(timeout))
        return self.lost

    async def extend(self, lease: float | None = None) -> None:
        """Extend the hold now, on a quorum of nodes; never shortens it. See `Hold.extend`."""
        await self._runner.run(self._extend_steps(lease))

    async def release(self) -> None:
        """Release this acquisition. A cancelled release still takes effect, without waiting. See `Hold.release`."""
        await self._runner.run(self._release_steps())

    def _open_scope(self) -> None:
        """Make a loss of the hold cancel the body in the running task."""
        self._watch(self._runner.scope(), [self._state])

    def _check_loss(self) -> None:
        """Raise if the hold was lost, even if it was released since."""
        self._runner.run_at_once(holding.check(self._state, self._runner.now()))
