"""What a simulated client does for its connections: the first ones, new ones after a while, and news of the nodes.

The counterpart of the maintenance in the other drivers, and by the same `census`, which decides when to connect a node
again, which node may have lost its memory, and what is told of it. All else is an event of the virtual network.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from redsync._core.memory import FIRST_USE
from redsync._drivers.census import Census
from redsync._drivers.maintenance import STRAGGLERS
from redsync._drivers.nodes import Node, NodeInfo
from redsync.testing.simulator.lines import Line

if TYPE_CHECKING:
    from redsync.testing.simulator.runner import SimRunner

__all__ = ["Upkeep"]


class Upkeep:
    """Keeps the lines of one client connected."""

    def __init__(self, runner: SimRunner, lines: Sequence[Line]) -> None:
        timing = runner.session.timing
        self._runner: Final = runner
        self._lines: Final = lines
        self._guard: Final = timing.restart_guard
        self._census: Final = Census(
            runner.nodes,
            [self],
            runner.now,
            restart_guard=timing.restart_guard,
            processes=runner.session.processes,
            tell=runner.tell,
            wake=self.look,
            luck=runner.session.luck,
        )
        self._napping: asyncio.Future[None] | None = None
        self._alarmed = self._stopping = self._hurried = False
        self._news = True
        self._look_at = 0.0

    # For the census.

    @property
    def links(self) -> list[Line | None]:
        """The lines that are connected."""
        return [None if line.connection is None else line for line in self._lines]

    def reconsider(self) -> None:
        """Do nothing: a line looks at its node whenever it is offered something."""

    # Life.

    async def begin(self) -> None:
        """Give the first connections a moment, and nodes that are new their birth records."""
        census, runner = self._census, self._runner
        self._connect_missing()
        deadline = runner.now() + runner.connect_timeout
        await self._nap_until(deadline, lambda: self._hurried or census.is_heard() or census.has_quorum())
        if not census.may_be_first_use():
            deadline = min(deadline, runner.now() + STRAGGLERS)
        await self._nap_until(deadline, lambda: self._hurried or census.is_heard())
        timeout = runner.session.timing.node_timeout
        end = runner.now() + FIRST_USE + timeout
        while runner.now() < end and not self._hurried:
            parcel = census.initialize(runner.post)
            if parcel is not None:
                await runner.wait_for_round(parcel, timeout)
            elif census.initialize_at < end:
                await self._nap_until(census.initialize_at, lambda: self._hurried)
            else:
                break

    async def sleep(self, until: float) -> None:
        """Keep house until that instant or an alarm."""
        census, runner = self._census, self._runner
        while True:
            now = runner.now()
            if self._news or now >= self._look_at:
                self._news = False
                census.initialize(runner.post)
                census.tell_changes()
                self._connect_missing()
                self._look_at = min(census.next_try(self._dialing()), self._next_change(now), census.initialize_at)
            if self._alarmed or now >= until:
                self._alarmed = False
                return
            await self._nap(min(until, self._look_at))

    def hurry(self) -> None:
        """Wait for first connections no longer: a round goes ahead without them, and what it wins is to be watched."""
        self._hurried = True
        self._wake()

    def alarm(self) -> None:
        """Let the watchdog look at once."""
        self._alarmed = True
        self._wake()

    def stop(self) -> None:
        """Connect nothing any more, and end what there is."""
        self._stopping = True
        for line in self._lines:
            line.vanish(dark=False)

    def _next_change(self, now: float) -> float:
        """Return when the next node will have remembered for long enough."""
        fit = [node.remembers_since + self._guard for node in self._runner.nodes] if self._guard else []
        return min((instant for instant in fit if instant > now), default=float("inf"))

    async def _nap_until(self, deadline: float, ready: Callable[[], bool]) -> None:
        while not ready() and self._runner.now() < deadline:
            await self._nap(deadline)

    async def _nap(self, until: float) -> None:
        self._napping = asyncio.Future(loop=self._runner.sim.loop)
        try:
            await self._runner.wakeups.sleep_until(self._napping, until)
        finally:
            self._napping = None

    def look(self) -> None:
        """Look at once at what has become known of a node."""
        self._news = True
        self._wake()

    def _wake(self) -> None:
        if self._napping is not None and not self._napping.done():
            self._napping.set_result(None)

    # Connections.

    def _dialing(self) -> list[int]:
        return [line.node.index for line in self._lines if line.dialing is not None]

    def _connect_missing(self) -> None:
        if not self._stopping:
            for node in self._census.due(self._dialing()):
                self._lines[node.index].dial()

    def meet(self, node: Node, info: NodeInfo) -> None:
        """Take note of who a node says it is."""
        self._census.meet(node, info)

    def note_tried(self, node: Node, error: str | None) -> None:
        """Take note of what came of a try to connect."""
        self._census.note_tried(node, error)
        self.look()

    def note_broken(self, node: Node, reason: str) -> None:
        """Take note that a connection has ended."""
        self._census.note_broken(node, reason)
        self.look()
