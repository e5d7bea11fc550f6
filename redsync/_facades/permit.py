"""A permit: one acquisition of a semaphore, to inspect, to pass on and to release."""

from __future__ import annotations

from typing import Any, Self
from weakref import ref

from redsync._core.permits import PermitState
from redsync._core.session import AsyncRunner, Runner, RunnerT_co
from redsync._facades.enterable import Statement, TaskEnterable, ThreadEnterable
from redsync._facades.hold import AnyHold, AsyncHold, Hold

__all__ = ["AsyncPermit", "Permit"]


class _AnyPermit(AnyHold[RunnerT_co]):
    """The common base of permits of both flavours: the methods that do not wait."""

    @property
    def id(self) -> str:
        """The permit's unique id, as kept by nodes and shown by `holders`."""
        return self._state.holder

    @property
    def slots(self) -> tuple[int, ...]:
        """Which of the semaphore's slots it has: numbers from 0 on, one for each permit that is not yet released.

        No two valid permits have a slot in common, so a slot can stand for one of several machines or licences. After a
        resize to fewer permits, numbers of older permits may be beyond the new limit.
        """
        assert isinstance(self._state, PermitState), "a semaphore's holds are permits"
        return self._state.slots[: self._state.count]

    def _share(self) -> int:
        return self._state.count

    def _innermost(self, ended: Statement) -> Any:  # noqa: ARG002  (wherever it is)
        return self

    _entered_in = _innermost


# Its methods come from those of AsyncPermit: change those, then run `make twins`.
class Permit(_AnyPermit[Runner], Hold, ThreadEnterable["Permit"]):
    """One acquisition of a semaphore, of one permit or several, from `acquire` or `with`.

    Valid until it is released or lost, which is final. It belongs to no thread: any may release it. The watchdog renews
    it until then, or until the client is closed, unless it has its own lease. `with permit:` releases it at the end.
    """

    def _leave(self, hold: Permit | None) -> None:  # noqa: ARG002  (it is this one)
        # Not in a `finally`: a release that was interrupted before it began is repeated.
        if not self._released:
            self._runner.give_back(self._let_go_steps())
        self._note_released()

    def __enter__(self) -> Self:
        """Begin a body that releases the permit at its end.

        Raises:
            LeaseLostError: The permit was lost.
            NotOwnedError: It was released.
        """
        self.check()
        self._state.entered[self] = ref(self)
        return self


class AsyncPermit(_AnyPermit[AsyncRunner], AsyncHold, TaskEnterable["AsyncPermit"]):
    """One acquisition of an async semaphore, of one permit or several, from `acquire` or `async with`.

    Like `Permit`, with tasks instead of threads. A loss of the permit cancels the body of an `async with`, unless the
    semaphore has an `on_lost` option.
    """

    async def _leave(self, hold: AsyncPermit | None) -> None:  # noqa: ARG002  (it is this one)
        # Not in a `finally`: a release that was interrupted before it began is repeated.
        if not self._released:
            await self._runner.run(self._let_go_steps())
        self._note_released()

    async def __aenter__(self) -> Self:
        """Begin a body that releases the permit at its end; a loss of the permit cancels it.

        Raises:
            LeaseLostError: The permit was lost.
            NotOwnedError: It was released.
        """
        self.check()
        self._state.entered[self] = ref(self)
        if not self._state.on_lost:
            self._open_scope()
        return self
