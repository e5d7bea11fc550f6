"""The driver of a client in a trial: it may have several sets of links, as in clients for threads, and be slow.

In a simulation no time passes while code runs. But a protocol that looks at the clock again, by a wait that is over at
once, must know how long its last step took: only a rate limiter does that, after its message to the nodes. So in runs
by seed time passes there: mostly little, as in a quick process, sometimes as much as in a slow or a paused one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

from redsync._core.effects import Broadcast, Effect, Notify, Reply, Steps, Tell, Wait, Wakeup
from redsync._core.quorum import Tally
from redsync._drivers.aio import AioCall
from redsync._drivers.aio_link_sets import AioLinkSet
from redsync.testing.simulator.machines import Machine
from redsync.testing.simulator.runner import SimulatedRunner, WatchedLinks, WatchedMaintenance
from tests.simulation.sets import LendingMaintenance, Sets

if TYPE_CHECKING:
    from tests.simulation.trial import Trial

T = TypeVar("T")

_QUICK, _SLOW, _PAUSED = 0.0005, 0.02, 4.0
"""The most seconds that pass before a look at the clock in a quick process, in a slow one, and in a paused one."""


class TrialRunner(SimulatedRunner):
    """Runs the protocols of one client in a trial.

    Attributes:
        sets: The sets of links that calls borrow; None if all use one.
    """

    _MAINTENANCE: ClassVar[type[WatchedMaintenance]] = LendingMaintenance
    sim: Trial

    def __init__(self, machine: Machine, **options: Any) -> None:
        self.sets: Sets | None = None
        super().__init__(machine, **options)
        self._delays: Final = self.sim.random_for(f"delays of {self.name}")

    def make_maintenance(self, *settings: Any) -> WatchedMaintenance:
        """Return the maintenance of this client."""
        maintenance = super().make_maintenance(*settings)
        if self.sim.sets > 1:
            self.sets = Sets(self, maintenance, settings[0], self.sim.sets - 1)
        return maintenance

    # For checkers.

    @property
    def maintenance(self) -> WatchedMaintenance | None:
        """The client's maintenance; None before its first use."""
        maintenance = self.life.maintenance
        assert maintenance is None or isinstance(maintenance, WatchedMaintenance), "it makes no other"
        return maintenance

    @property
    def links(self) -> WatchedLinks | None:
        """The client's set of links; None before its first use."""
        return self.maintenance.own if self.maintenance is not None else None

    @property
    def link_sets(self) -> list[WatchedLinks]:
        """The maintenance's set, then those that calls borrow."""
        own = [] if self.links is None else [self.links]
        return [*own, *(() if self.sets is None else self.sets.all)]

    def listens(self, key: bytes) -> bool:
        """Return whether a waiter waits, or is about to wait, for nodes' wake-ups for that key."""
        return key in self.life.wakeups._mailboxes

    # Driving.

    def perform(self, effect: Effect, call: AioCall) -> Coroutine[Any, Any, Reply] | None:
        """Perform an effect, which is a step of the machine."""
        if self.sets is not None and isinstance(effect, (Wait, Notify)):
            self.sets.take_back(call)
        if call.awaited and self.sim.slowness and isinstance(effect, Wait) and effect.until <= self.clock():
            self.machine.stepped = True
            return self._wait_late(effect, call)
        return super().perform(effect, call)

    async def _wait_late(self, effect: Wait, call: AioCall) -> Wakeup:
        await self._take_time()
        return await self._wait(effect, call)

    async def _take_time(self) -> None:
        rng, seconds = self._delays, _QUICK * self._delays.random()
        if rng.random() < self.sim.slowness:
            longer = _QUICK * (_PAUSED / _QUICK) ** rng.random()
            if longer < _SLOW and rng.random() < 0.5:
                seconds = longer
            else:
                self.machine.pause()
                self.sim.timeline.after(longer, self.machine.resume)
        # In a slow process other tasks may run meanwhile; in a paused one this ends when the machine continues.
        await asyncio.sleep(seconds)

    async def _broadcast(self, effect: Broadcast, call: AioCall) -> Tally:
        if self.sets is None or not call.awaited:
            return await super()._broadcast(effect, call)
        self.machine.stepped = True
        try:
            await self.sets.borrow(call, effect)
            return await super()._broadcast(effect, call)
        except BaseException:
            self.sets.throw_away(call)
            raise

    async def drive(self, steps: Steps[T], call: AioCall) -> T:
        """Run a protocol; then return what it has borrowed."""
        try:
            return await super().drive(steps, call)
        finally:
            if self.sets is not None:
                self.sets.take_back(call)

    def _links(self, effect: Broadcast | Tell, call: AioCall) -> AioLinkSet:
        links = super()._links(effect, call)
        return links if self.sets is None else self.sets.links(call)
