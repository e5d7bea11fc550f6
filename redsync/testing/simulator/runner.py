"""The client of a simulation, and its driver: the unchanged driver for asyncio, which also reports what it does.

Clock, random numbers and identity come from the machine. All else is as on real machines.

In a simulation no time passes while code runs. But a protocol that looks at the clock again, by a wait that is over at
once, must know how long its last step took: only a rate limiter does that, after its message to the nodes. So in runs
by seed time passes there: mostly little, as in a quick process, sometimes as much as in a slow or a paused one.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import uuid
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import redis.asyncio

from redsync._core.effects import Broadcast, Effect, Notify, Reply, Steps, Tell, Wait, Wakeup
from redsync._core.events import Event
from redsync._core.ownership import Owner
from redsync._core.presence import ClientRecord
from redsync._core.quorum import Tally
from redsync._core.timing import Timing
from redsync._drivers.aio import AioRunner
from redsync._drivers.aio_driver import AioCall, Perform
from redsync._drivers.aio_link_sets import AioLinkSet
from redsync._drivers.nodes import Node
from redsync._drivers.process import Surroundings
from redsync._drivers.requests import Request
from redsync.client_async import AsyncClient
from redsync.testing.simulator.happenings import Decided, Told
from redsync.testing.simulator.letters import Letter, WatchedLinks, WatchedMaintenance
from redsync.testing.simulator.machines import Machine
from redsync.testing.simulator.sets import Sets

if TYPE_CHECKING:
    from redsync.testing.simulator.simulation import Simulation

__all__ = ["SimulatedClient", "SimulatedRunner"]

T = TypeVar("T")

_QUICK, _SLOW, _PAUSED = 0.0005, 0.02, 4.0
"""The most seconds that pass before a look at the clock in a quick process, in a slow one, and in a paused one."""


class SimulatedRunner(AioRunner):
    """Runs the protocols of one simulated client.

    Attributes:
        sim: The simulation.
        machine: The machine that the client runs on.
        name: The client's name in the trace: its machine's name, numbered from the second client on.
        letters: The commands that the client has sent.
        numbers: The numbers of the rounds under way, by their tallies.
        sets: The sets of links that calls borrow; None if all use one.
        delays: The seconds, by its clock, that passed before each further look at the clock.
    """

    def __init__(self, machine: Machine, *, listeners: Sequence[Callable[[Event], object]], **options: Any) -> None:
        """Make a runner for a client on a machine; options as for `AioRunner`."""
        self.sim: Final[Simulation] = machine.sim
        self.machine: Final = machine
        number = len(machine.runners) + 1
        self.name: Final = machine.name if number == 1 else f"{machine.name}.{number}"
        self.letters: Final[dict[Request, Letter]] = {}
        self.numbers: Final[dict[Tally, int]] = {}
        self.delays: Final[list[float]] = []
        self.sets: Sets | None = None
        self._watchdog: AioCall | None = None
        self._serials: Final = itertools.count(1)
        self._delays: Final = self.sim.random_for(f"delays of {self.name}")
        rng = machine.random
        super().__init__(
            listeners=[self._hear, *listeners],
            surroundings=Surroundings(
                machine.clock.now,
                rng.random,
                lambda: str(uuid.UUID(int=rng.getrandbits(128), version=4)),
                lambda: ClientRecord(machine.name, number, "simulation", self.sim.now),
            ),
            **options,
        )
        machine.runners.append(self)
        self.sim.runners[self.name] = self
        self.sim.trace.names[self.client_id] = self.name

    def make_maintenance(self, **settings: Any) -> WatchedMaintenance:
        """Return the maintenance of this client."""
        assert self.sim.loop.current is self.machine, "a client is used on its own machine"
        maintenance = WatchedMaintenance(self, **settings)
        if self.sim.sets > 1:
            self.sets = Sets(self, maintenance, settings["shared"], self.sim.sets - 1)
        return maintenance

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

    def new_owner(self) -> Owner:
        """Return a new owner, with a number that does not depend on earlier simulations."""
        return Owner(self.client_id, next(self._serials))

    def _hear(self, event: Event) -> None:
        self.sim.saw(Told(self.sim.now, self, event))

    async def run(self, steps: Steps[T]) -> T:
        """Perform the protocol's effects until it returns; raise its errors."""
        try:
            return await super().run(steps)
        finally:
            self.machine.stepped = True

    def run_at_once(self, steps: Steps[T]) -> T:
        """Perform a protocol that never waits."""
        try:
            return super().run_at_once(steps)
        finally:
            self.machine.stepped = True

    def perform(self, effect: Effect, call: AioCall) -> Coroutine[Any, Any, Reply] | None:
        """Perform an effect, which is a step of the machine."""
        self.machine.stepped = True
        if self.sets is not None and isinstance(effect, (Wait, Notify)):
            self.sets.give_back(call)
        if self.sim.slowness and isinstance(effect, Wait) and effect.until <= self.clock():
            return self._wait_late(effect, call)
        return super().perform(effect, call)

    async def _wait_late(self, effect: Wait, call: AioCall) -> Wakeup:
        await self._take_time()
        self.delays.append(self.clock() - effect.until)
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

    def perform_by_maintenance(self, effect: Effect, call: AioCall) -> Coroutine[Any, Any, Reply] | None:
        """Perform an effect of the watchdog."""
        self.machine.stepped = True
        self._watchdog = call
        return super().perform_by_maintenance(effect, call)

    async def _broadcast(self, effect: Broadcast, call: AioCall) -> Tally:
        self.machine.stepped = True
        if self.sets is None or call is self._watchdog:
            tally = await super()._broadcast(effect, call)
        else:
            try:
                await self.sets.borrow(call, effect)
                tally = await super()._broadcast(effect, call)
            except BaseException:
                self.sets.throw_away(call)
                raise
        number = self.numbers.pop(tally, None)
        if number is not None:
            self.sim.saw(Decided.of(self.sim.now, self.name, number, tally))
        return tally

    async def drive(self, steps: Steps[T], call: AioCall, perform: Perform) -> T:
        """Run a protocol; then return what it has borrowed."""
        try:
            return await super().drive(steps, call, perform)
        finally:
            if self.sets is not None:
                self.sets.give_back(call)

    def _links(self, effect: Broadcast | Tell, call: AioCall) -> AioLinkSet:
        links = super()._links(effect, call)
        return links if self.sets is None else self.sets.links(call, effect)

    def dispose(self) -> None:
        """End protocols that still run without performing their effects: the simulation is over."""
        self.closed = True


class _Redis(redis.asyncio.Redis):
    """Has the address of a node, and never connects. Cached by URL, because making one is slow."""

    @classmethod
    @functools.cache
    def from_url(cls, url: str, **options: Any) -> Any:
        """Return the instance for that URL."""
        return super().from_url(url, **options)


class SimulatedClient(AsyncClient):
    """Makes synchronizers over the virtual nodes of a simulation, for programs on one machine of it.

    Made by `Machine.client`; it can do all that an `AsyncClient` can.
    """

    _REDIS = _Redis

    def __init__(self, machine: Machine, **options: Any) -> None:
        self._machine = machine
        sim = machine.sim
        urls = sim.world.urls
        if sim.machines.index(machine) % 2:
            urls = urls[: len(urls) - sim.unlisted]
        super().__init__(urls, **options)
        # A machine keeps its clients, so none is forgotten; and the finalizer's arguments would keep the machine alive.
        self._finalizer.detach()

    def _make_runner(self, nodes: list[Node], timing: Timing, listeners: Sequence[Callable[[Event], object]]) -> Any:
        return SimulatedRunner(
            self._machine,
            nodes=nodes,
            timing=timing,
            listeners=listeners,
            watchdog=self._WATCHDOG,
            farewell=self._FAREWELL,
        )
