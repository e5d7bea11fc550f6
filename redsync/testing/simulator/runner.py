"""The client of a simulation, and its driver: the unchanged driver for asyncio, which also reports what it does.

Clock, random numbers and identity come from the machine. All else is as on real machines: the transport runs unchanged,
and its parts report what a set of links sends, and what the links record before they send it.
"""

from __future__ import annotations

import itertools
import uuid
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

from redsync._core.client_records import ClientRecord
from redsync._core.effects import Broadcast, Effect, Reply, Steps
from redsync._core.holds import Owner
from redsync._core.observing import Event
from redsync._core.quorum import Tally
from redsync._drivers.aio import AioCall, AioRunner
from redsync._drivers.aio_link_sets import AioLinkSet, StreamLink
from redsync._drivers.aio_maintenance import AioMaintenance
from redsync._drivers.environment import Environment
from redsync._drivers.link_sets import Shared
from redsync._drivers.links import AnyLink
from redsync._drivers.nodes import Node
from redsync._drivers.requests import Request
from redsync.client_async import AsyncClient
from redsync.testing.simulator.machines import Machine
from redsync.testing.simulator.network import Connection, VirtualTransport
from redsync.testing.simulator.trace_events import Connected, Decided, Disconnected, Sent, Told

if TYPE_CHECKING:
    from redsync.testing.simulator.simulation import Simulation

__all__ = ["SimulatedClient", "SimulatedRunner", "WatchedLinks", "WatchedMaintenance", "connection_of"]

T = TypeVar("T")


class _Noted(deque[Request]):
    """The requests pending on a link, with a record of all earlier ones.

    Attributes:
        sent: All requests so far.
        fresh: The latest requests; the reader clears it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[Request] = []
        self.fresh: set[Request] = set()

    def extend(self, requests: Iterable[Request]) -> None:
        requests = list(requests)
        super().extend(requests)
        self.sent += requests
        self.fresh.update(requests)


class WatchedLinks(AioLinkSet):
    """A set of links that reports what it sends."""

    WATCHES = False  # The loop gives asyncio transports to virtual nodes.

    def __init__(self, runner: SimulatedRunner, *settings: Any) -> None:
        super().__init__(*settings)
        self._runner = runner

    def install(self, link: AnyLink) -> None:
        """Start to use a new link, and record everything sent over it."""
        runner, connection = self._runner, connection_of(link)
        connection.client = runner.name
        noted = link.pending = _Noted()
        connection.requests = noted.sent
        self._note_connected(link)
        super().install(link)

    def _note_connected(self, link: AnyLink) -> None:
        """Record that a node is up. `tests/simulation` replaces it where a client has several sets."""
        runner = self._runner
        left = max(link.node.remembers_since + runner.session.timing.restart_guard - runner.now(), 0.0)
        runner.sim.saw(Connected(runner.sim.now, runner.name, link.node.index, left))

    def send(self, *requests: Request) -> None:
        """Send requests, and report them."""
        runner = self._runner
        # For each node its bit, with the set of the requests that it is sent from now on.
        noted = [(link.bit, _noted(link).fresh) for link in self.links if link is not None]
        for _, sent in noted:
            sent.clear()
        super().send(*requests)
        for request in requests:
            if (command := request.command) is not None:
                nodes = sum([bit for bit, sent in noted if request in sent])
                if request.tally is not None:
                    runner.numbers[request.tally] = request.number
                said = request.number, command.script.name, command.keys, command.words
                runner.sim.saw(Sent(runner.sim.now, runner.name, *said, nodes, request.tally is not None, request))


def _noted(link: AnyLink) -> _Noted:
    assert isinstance(link.pending, _Noted), "the link is in use"
    return link.pending


def connection_of(link: AnyLink) -> Connection:
    """Return the virtual connection of a link."""
    assert isinstance(link, StreamLink), "the loop gives asyncio transports to virtual nodes"
    asyncio_transport = link._transport
    assert isinstance(asyncio_transport, VirtualTransport), "the loop makes no other kind"
    return asyncio_transport.connection


class WatchedMaintenance(AioMaintenance):
    """A maintenance that reports new and lost connections."""

    own: WatchedLinks

    def __init__(self, runner: SimulatedRunner, *settings: Any) -> None:
        self._runner = runner
        super().__init__(*settings)

    def _make_set(self, shared: Shared) -> AioLinkSet:
        return WatchedLinks(self._runner, shared, self._loop, self._on_broken)

    def _on_broken(self, node: Node, reason: str) -> None:
        self._tell(node, reason)
        super()._on_broken(node, reason)

    async def _connect(self, node: Node) -> None:
        await super()._connect(node)
        if not node.connected:
            self._tell(node, node.down_reason)

    def _tell(self, node: Node, reason: str) -> None:
        runner = self._runner
        runner.sim.saw(Disconnected(runner.sim.now, runner.name, node.index, reason))


class SimulatedRunner(AioRunner):
    """Runs the protocols of one simulated client.

    Attributes:
        sim: The simulation.
        machine: The machine that the client runs on.
        name: The client's name in the trace: its machine's name, numbered from the second client on.
        numbers: The numbers of the rounds under way, by their tallies.
    """

    _MAINTENANCE: ClassVar[type[WatchedMaintenance]] = WatchedMaintenance  # tests/simulation replaces it

    def __init__(self, machine: Machine, *, listeners: Sequence[Callable[[Event], object]], **options: Any) -> None:
        """Make a runner for a client on a machine; options as for `AioRunner`."""
        self.sim: Simulation = machine.sim
        self.machine: Final = machine
        number = len(machine.runners) + 1
        self.name: Final = machine.name if number == 1 else f"{machine.name}.{number}"
        self.numbers: Final[dict[Tally, int]] = {}
        self._serials: Final = itertools.count(1)
        rng = machine.random
        options["environment"] = Environment(
            machine.clock.now,
            rng.random,
            lambda: str(uuid.UUID(int=rng.getrandbits(128), version=4)),
            lambda: ClientRecord(machine.name, number, "simulation", self.sim.now),
        )
        super().__init__(
            listeners=[self._hear, *listeners],
            **options,
        )
        machine.runners.append(self)
        self.sim.runners[self.name] = self
        self.sim.trace.names[self.client_id] = self.name

    def make_maintenance(self, *settings: Any) -> WatchedMaintenance:
        """Return the maintenance of this client."""
        assert self.sim.loop.current is self.machine, "a client is used on its own machine"
        return self._MAINTENANCE(self, *settings)

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
        return super().perform(effect, call)

    async def _broadcast(self, effect: Broadcast, call: AioCall) -> Tally:
        self.machine.stepped = True
        tally = await super()._broadcast(effect, call)
        number = self.numbers.pop(tally, None)
        if number is not None:
            self.sim.saw(Decided.of(self.sim.now, self.name, number, tally))
        return tally


class SimulatedClient(AsyncClient):
    """Makes synchronizers over the virtual nodes of a simulation, for programs on one machine of it.

    Made by `Machine.client`; it can do all that an `AsyncClient` can.
    """

    def __init__(self, machine: Machine, **options: Any) -> None:
        self._RUNNER: Any = partial(machine.sim.RUNNER, machine)
        super().__init__(machine.sim.urls_for(machine), **options)
        # A machine keeps its clients, so none is forgotten; and the finalizer's arguments would keep the machine alive.
        self._finalizer.detach()
