"""The virtual network: connections between machines and nodes, and what goes wrong with them.

A connection carries messages in order, in each direction; between connections nothing is ordered. As with TCP, nothing
is lost without the connection's end: a lost packet stalls its direction, and then the connection breaks. What was lost
may be a request, which is then never executed, or a reply to one that was. A partition holds what is sent until it is
healed: then it arrives late, or the connection turns out to be broken, as the seed says. A client that has given up a
connection may so be followed by its own old commands. If the network `retransmits`, what was held waits on until its
sender tries again, as with TCP, whose pauses have grown with the partition: so a new connection is quicker.

A client that gives a connection up resets it: what its machine held is dropped, and what is under way may still arrive.
Or else, with the likelihood `kept`, the machine goes on sending, as that of the parent of a fork may. Through a
partition no reset is heard: the node learns of it when it next sends something.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

from redsync.testing.simulator.loop import Host
from redsync.testing.simulator.timeline import Timeline

__all__ = ["CLOSED", "Connection", "End", "Network", "Path", "Route"]

CLOSED: Final = object()
"""The last message of a direction: its sender has closed the connection."""

_STALL = 1.0
"""The longest time in seconds from a lost packet to the end of its connection."""

_LONGEST_RETRANSMISSION = 120.0
"""Seconds: the longest pause of TCP between two retransmissions (RFC 6298 asks for at least 60, Linux has 120)."""

_LATE = 0.6
"""How likely it is that a connection survives a partition, and what was held arrives late."""


class End(Protocol):
    """What a connection's messages are for."""

    def receive(self, connection: Connection, message: Any) -> None:
        """Take a message, `CLOSED` for the last one."""
        ...


class Path:
    """One direction between a machine and a node.

    Attributes:
        shortest: Seconds that every packet takes.
        spread: Seconds that a packet may take in addition; most take much less.
        delay: Seconds that a packet may take in addition to that, while the path is slow.
        blocked: Nothing gets through.
        loss: How likely it is that a packet is lost.
    """

    __slots__ = ("blocked", "delay", "loss", "shortest", "spread")

    def __init__(self, shortest: float, spread: float) -> None:
        self.shortest = shortest
        self.spread = spread
        self.mend()

    def mend(self) -> None:
        """Let everything get through again, at full speed."""
        self.blocked = False
        self.delay = self.loss = 0.0

    @property
    def troubled(self) -> bool:
        """Whether something is wrong with it."""
        return self.blocked or self.delay > 0 or self.loss > 0


class Route:
    """What lies between a machine and a node, in both directions; all their connections go this way."""

    def __init__(self, there: Path, back: Path) -> None:
        self.there: Final = there
        self.back: Final = back
        self.connections: Final[dict[Connection, None]] = {}

    @property
    def troubled(self) -> bool:
        """Whether something is wrong with it."""
        return self.there.troubled or self.back.troubled


class Stream:
    """One direction of a connection."""

    __slots__ = (
        "_connection",
        "_end",
        "_held_since",
        "_host",
        "_last",
        "_luck",
        "_path",
        "_timeline",
        "held",
        "stalled",
    )

    def __init__(self, connection: Connection, path: Path, host: Host | None, end: End) -> None:
        self._connection: Final = connection
        self._path: Final = path
        self._host: Final = host
        self._end: Final = end
        self._luck: Final = connection.network.luck
        self._timeline: Final = connection.network.timeline
        self._last = self._held_since = 0.0
        self.held: list[Any] | None = None
        self.stalled = False

    def send(self, message: Any) -> None:
        """Send a message; it arrives after all that were sent before, or never."""
        connection, path = self._connection, self._path
        if not connection.open:
            connection.refuse()
            return
        if self.held is not None:
            self.held.append(message)
            return
        if path.blocked:
            self.held, self._held_since = [message], self._timeline.now
            return
        luck, timeline = self._luck, self._timeline
        if path.loss and luck() < path.loss:
            self.held, self.stalled = [message], True
            timeline.after(luck() * _STALL, connection.reset)
            return
        arrival = timeline.now + path.shortest + path.spread * luck() ** 6
        if path.delay:
            arrival += path.delay * luck()
        arrival = max(arrival, self._last)
        self._last = arrival
        timeline.schedule(arrival, self._host, self._arrive, (message,))

    def drop(self) -> bool:
        """Send nothing of what was held, nor anything later; return whether something may still get through."""
        cut = self.held is not None or self._path.blocked
        if cut:
            self.held = []
        return not cut

    def _arrive(self, message: Any) -> None:
        connection = self._connection
        if connection.aborted and self is connection.back:
            connection.reset()
        elif connection.open:
            self._end.receive(connection, message)

    def end(self) -> None:
        """Tell who listens that the connection has ended, in a while; if it can be told."""
        network = self._connection.network
        if not self._path.blocked:
            network.timeline.schedule(
                network.timeline.now + self._path.shortest, self._host, self._end.receive, (self._connection, CLOSED)
            )

    def retransmit(self) -> None:
        """Let what was held go on its way when its sender tries again."""
        pause = min(self._timeline.now - self._held_since, _LONGEST_RETRANSMISSION)
        self._timeline.after(pause * self._luck(), self.release)

    def release(self) -> None:
        """Let what was held go on its way."""
        held, self.held = self.held or (), None
        for message in held:
            self.send(message)


class Connection:
    """A connection from a client on a machine to a node.

    Attributes:
        network: The network.
        client: The client's name.
        there: Carries requests to the node.
        back: Carries replies to the client.
        open: Packets that are under way still arrive.
        given_up: The client uses it no more.
        aborted: Its machine knows it no more either.
    """

    __slots__ = ("_dark", "_route", "aborted", "back", "client", "given_up", "network", "open", "there")

    def __init__(self, network: Network, route: Route, *, machine: Host, caller: End, node: End, client: str) -> None:
        self.network: Final = network
        self.client: Final = client
        self._route: Final = route
        self.there: Final = Stream(self, route.there, None, node)
        self.back: Final = Stream(self, route.back, machine, caller)
        self.open = True
        self.given_up = self.aborted = False
        self._dark = False
        route.connections[self] = None

    def hang_up(self) -> None:
        """End it from the client's side: what it had sent still arrives."""
        self.given_up = True
        self.there.send(CLOSED)

    def abort(self) -> None:
        """Give it up from the client's side: what has not left the machine never will."""
        kept = self.network.kept
        if kept and self.network.luck() < kept:
            self.hang_up()
            return
        self.given_up = self.aborted = True
        if self.open and self.there.drop():
            self.there.send(CLOSED)

    def reset(self, *, silently: bool = False) -> None:
        """Break it: what is under way is lost, and both ends hear of it, unless it happens silently."""
        if not self.open:
            return
        self.open, self._dark = False, silently
        self._route.connections.pop(self, None)
        if not silently:
            self.back.end()
            self.there.end()

    def refuse(self) -> None:
        """Answer somebody who sends over it although it has ended; nobody does where all is dark."""
        if not self._dark:
            self.back.end()

    def lighten(self) -> None:
        """Let somebody be there again who knows that it has ended."""
        self._dark = False
        self.back.end()

    def heal(self) -> None:
        """Go on after a partition: what was held arrives late, or the connection breaks."""
        streams = [stream for stream in (self.there, self.back) if stream.held is not None and not stream.stalled]
        if streams and self.network.luck() >= _LATE:
            self.reset()
            return
        for stream in streams:
            if self.network.retransmits:
                stream.retransmit()
            else:
                stream.release()


class Network:
    """All routes and connections.

    Attributes:
        timeline: What happens when.
        luck: Returns a random number in [0, 1), by the seed.
        retransmits: Whether what a partition held waits for its sender's next try; else it goes on at once.
        kept: How likely it is that a machine goes on sending what a client has given up.
    """

    def __init__(self, timeline: Timeline, luck: Callable[[], float]) -> None:
        self.timeline: Final = timeline
        self.luck: Final = luck
        self.retransmits = False
        self.kept = 0.0
        self._routes: Final[dict[tuple[Host, End], Route]] = {}

    def route(self, machine: Host, node: End) -> Route:
        """Return what lies between a machine and a node; how far they are apart is decided at the first look."""
        route = self._routes.get((machine, node))
        if route is None:
            shortest = 0.0001 + 0.002 * self.luck() ** 2
            spread = 0.001 + 0.03 * self.luck() ** 2
            route = self._routes[machine, node] = Route(Path(shortest, spread), Path(shortest, spread))
        return route

    @property
    def troubled(self) -> bool:
        """Whether something is wrong anywhere."""
        return any(route.troubled for route in self._routes.values())

    def dial(self, machine: Host, caller: End, node: End, client: str) -> Connection:
        """Return a new connection; whether anybody is there shows when something is sent."""
        return Connection(self, self.route(machine, node), machine=machine, caller=caller, node=node, client=client)

    def heal(self, route: Route) -> None:
        """Let all be well again between a machine and a node."""
        route.there.mend()
        route.back.mend()
        for connection in list(route.connections):
            connection.heal()
