"""The virtual network: the paths between machines and nodes, and their faults. `connections` has the connections."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from redsync.testing.simulator.connections import Connection, End
from redsync.testing.simulator.loop import Host
from redsync.testing.simulator.timeline import Timeline

__all__ = ["Network", "Path", "Route"]


class Path:
    """One direction between a machine and a node.

    Attributes:
        shortest: The seconds that every packet takes.
        spread: Additional seconds that a packet may take; usually far fewer.
        delay: More seconds that a packet may take while the path is slow.
        blocked: True if nothing gets through.
        loss: The probability that a packet is lost.
        tears: The probability that a connection ends in the middle of a message.
    """

    def __init__(self, shortest: float, spread: float) -> None:
        self.shortest = shortest
        self.spread = spread
        self.mend()

    def mend(self) -> None:
        """Let all packets through again, at full speed."""
        self.blocked = False
        self.delay = self.loss = self.tears = 0.0

    @property
    def troubled(self) -> bool:
        """True if the path has a fault."""
        return self.blocked or self.delay > 0 or self.loss > 0 or self.tears > 0


class Route:
    """The two paths between a machine and a node, one in each direction; all their connections use them."""

    def __init__(self, there: Path, back: Path) -> None:
        self.there: Final = there
        self.back: Final = back
        self.connections: Final[dict[Connection, None]] = {}

    @property
    def troubled(self) -> bool:
        """True if either path has a fault."""
        return self.there.troubled or self.back.troubled


class Network:
    """All routes and connections.

    Attributes:
        timeline: The timeline of the simulation.
        random: Returns a random number in [0, 1), by the seed.
        wire: The same for faults of bytes. A separate source, so that all else is as without it.
        retransmits: True if messages held by a partition wait for their sender's next try; if False, they continue at
            once.
        kept: The probability that a machine continues to send what a client abandoned.
        split: The probability that a message arrives in two pieces.
        room: The number of bytes of a connection that a machine keeps until they have arrived; the client keeps the
            rest.
    """

    def __init__(self, timeline: Timeline, random: Callable[[], float], wire: Callable[[], float]) -> None:
        self.timeline: Final = timeline
        self.random: Final = random
        self.wire: Final = wire
        self.retransmits = False
        self.kept = self.split = 0.0
        self.room = 1 << 18
        self._routes: Final[dict[tuple[Host, End], Route]] = {}

    def route(self, machine: Host, node: End) -> Route:
        """Return the route between a machine and a node; the first call decides their distance."""
        route = self._routes.get((machine, node))
        if route is None:
            shortest = 0.0001 + 0.002 * self.random() ** 2
            spread = 0.001 + 0.03 * self.random() ** 2
            route = self._routes[machine, node] = Route(Path(shortest, spread), Path(shortest, spread))
        return route

    @property
    def troubled(self) -> bool:
        """True if any route has a fault."""
        return any(route.troubled for route in self._routes.values())

    def dial(self, machine: Host, caller: End, node: End) -> Connection:
        """Return a new connection; the first message shows whether a server answers."""
        return Connection(self, self.route(machine, node), machine=machine, caller=caller, node=node)

    def leave(self, machine: Host, *, dark: bool) -> None:
        """End the connections of a crashed machine; the nodes learn of it, unless it is `dark`."""
        for (host, _), route in self._routes.items():
            for connection in list(route.connections) if host is machine else ():
                if not dark and not connection.given_up:
                    connection.hang_up()

    def heal(self, route: Route) -> None:
        """End all faults between a machine and a node."""
        route.there.mend()
        route.back.mend()
        for connection in list(route.connections):
            connection.heal()
