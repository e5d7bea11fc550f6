"""The virtual network: paths between machines and nodes with their faults, and connections, as kernels keep them.

A connection carries bytes in order, in each direction; between connections there is no order. Bytes sent at once may
arrive in pieces, and the connection may end between two of them. As with TCP, nothing is lost without the connection's
end: a lost packet stalls its direction, and then the connection breaks. The lost bytes may be a request, which is then
never executed, or the reply to a request that was. A partition holds packets until it heals: then they arrive late, or
the connection turns out to be broken; the seed decides. So old commands of a client may arrive minutes after it has
abandoned their connection. If the network `retransmits`, held bytes wait until their sender tries again. As with TCP,
the pauses between tries grow during the partition, so a new connection is quicker.

A client that resets a connection discards what its machine still held; bytes under way may arrive. With the probability
`kept`, the machine continues to send instead, as the machine of a forked process's parent may. No reset gets through a
partition: the node learns of it when it next sends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Protocol

from redsync.testing.simulator.loop import Host
from redsync.testing.simulator.timeline import Timeline

if TYPE_CHECKING:
    from redsync.testing.simulator.runner import SimulatedRunner

__all__ = ["ACCEPTED", "CLOSED", "CONNECT", "Connection", "End", "Mark", "Network", "Path", "Route"]


class Mark(Enum):
    """A mark that a connection carries besides bytes."""

    CONNECT = "the first message to a node"
    ACCEPTED = "the first message from a node"
    CLOSED = "the last message of a direction: its sender closed the connection, or it broke"


CONNECT, ACCEPTED, CLOSED = Mark

_STALL = 1.0
"""Seconds from a lost packet to the end of its connection, at most."""

_LONGEST_RETRANSMISSION = 120.0
"""Seconds: TCP's longest pause between two retransmissions (RFC 6298 asks for at least 60, Linux has 120)."""

_LATE = 0.6
"""The probability that a connection survives a partition, and held bytes arrive late."""


class End(Protocol):
    """A receiver of a connection's messages."""

    def receive(self, connection: Connection, message: bytes | Mark) -> None:
        """Receive a message, `CLOSED` for the last one."""
        ...


class Stream:
    """One direction of a connection.

    Attributes:
        arrives: The arrival time of the latest message that has left.
        held: The messages that can't leave now; None if nothing is held.
        stalled: True if nothing gets through any more.
        size: The number of bytes that have not arrived yet.
    """

    def __init__(self, connection: Connection, path: Path, host: Host | None, end: End) -> None:
        self._connection: Final = connection
        self._path: Final = path
        self._host: Final = host
        self._end: Final = end
        self.arrives = self._held_since = 0.0
        self.held: list[bytes | Mark] | None = None
        self.stalled = False
        self.size = 0

    def send(self, message: bytes | Mark, *, push: bool = False) -> None:
        """Send a message; it arrives after all sent before, or never; `push`: it answers no request."""
        connection = self._connection
        if not connection.open:
            connection.refuse()
            return
        if message.__class__ is bytes:
            self.size += len(message)
            split = connection.network.split
            wire = connection.network.wire
            if split and len(message) > 1 and wire() < split:
                at = 1 + int(wire() * (len(message) - 1))
                self._send(message[:at], wire)
                message = message[at:]
        self._send(message, connection.network.random, push=push)

    def _send(self, message: bytes | Mark, rng: Callable[[], float], *, push: bool = False) -> None:
        connection, path = self._connection, self._path
        if self.held is not None:
            self.held.append(message)
            return
        timeline = connection.network.timeline
        if path.blocked:
            self.held, self._held_since = [message], timeline.now
            return
        if path.loss and rng() < path.loss:
            self.held, self.stalled = [message], True
            timeline.after(rng() * _STALL, connection.reset)
            return
        arrival = timeline.now + path.shortest + path.spread * rng() ** 6
        if path.delay:
            arrival += path.delay * rng()
        if push and path.push_delay:
            arrival += path.push_delay * connection.network.wire()
        self.arrives = arrival = max(arrival, self.arrives)
        if path.tears and message.__class__ is bytes and connection.network.wire() < path.tears:
            message = message[: 1 + int(connection.network.wire() * (len(message) - 1))]
            timeline.schedule(arrival, self._host, self._arrive, (message,))
            timeline.schedule(arrival, None, connection.reset)
            self.held, self.stalled = [], True
            return
        timeline.schedule(arrival, self._host, self._arrive, (message,))

    def drop(self) -> bool:
        """Drop held messages and send no later ones; return whether messages may still get through."""
        cut = self.held is not None or self._path.blocked
        if cut:
            self.held = []
        return not cut

    def _arrive(self, message: bytes | Mark) -> None:
        connection = self._connection
        if message.__class__ is bytes:
            self.size -= len(message)
        if connection.aborted and self is connection.back:
            connection.reset()
        elif connection.open:
            self._end.receive(connection, message)
            if self is connection.there and connection.waits_for_room:
                connection.make_room()

    def end(self) -> None:
        """Tell the receiver after a while that the connection has ended, unless the path is blocked."""
        timeline = self._connection.network.timeline
        if not self._path.blocked:
            when = timeline.now + self._path.shortest
            timeline.schedule(when, self._host, self._end.receive, (self._connection, CLOSED))

    def retransmit(self) -> None:
        """Release held messages when their sender tries again."""
        network = self._connection.network
        pause = min(network.timeline.now - self._held_since, _LONGEST_RETRANSMISSION)
        network.timeline.after(pause * network.random(), self.release)

    def release(self) -> None:
        """Send held messages."""
        held, self.held = self.held or (), None
        for message in held:
            if self._connection.open:
                self._send(message, self._connection.network.random)


class Connection:
    """A connection from a client on a machine to a node.

    Attributes:
        network: The network.
        host: The machine.
        client: The name of the client that made it, if known.
        requests: The requests sent since the client began to use it, in order; None before that.
        served: The requests answered since then, with the replies, in order, until the client has them.
        maker: The driver that made it; None if a foreign client made it.
        there: Carries requests to the node.
        back: Carries replies to the client.
        open: True while packets under way still arrive.
        given_up: True once the client no longer uses it.
        aborted: True once its machine no longer knows it either.
        waits_for_room: True while the client has more to send than the machine accepts.
    """

    def __init__(self, network: Network, route: Route, *, machine: Host, caller: End, node: End) -> None:
        self.network: Final = network
        self.host: Final = machine
        self.client = machine.name
        self.requests: list[Any] | None = None
        self.served: Final[deque[tuple[list[bytes], Any]]] = deque()
        self.maker: SimulatedRunner | None = None
        self._caller: Final = caller
        self._route: Final = route
        self.there: Final = Stream(self, route.there, None, node)
        self.back: Final = Stream(self, route.back, machine, caller)
        self.open = True
        self.given_up = self.aborted = self.waits_for_room = False
        self._dark = False
        route.connections[self] = None

    def hang_up(self) -> None:
        """Close it from the client's side; messages already sent still arrive."""
        self.given_up = True
        self.there.send(CLOSED)

    def abort(self) -> None:
        """Abandon it from the client's side; messages that have not left the machine never will."""
        kept = self.network.kept
        if kept and self.network.random() < kept:
            self.hang_up()
            return
        self.given_up = self.aborted = True
        if self.open and self.there.drop():
            self.there.send(CLOSED)

    def make_room(self) -> None:
        """Let the client send more, because messages have arrived."""
        self.network.timeline.schedule(self.network.timeline.now, self.host, self._caller.receive, (self, b""))

    def reset(self, *, silently: bool = False) -> None:
        """Break it: messages under way are lost, and both ends learn of it unless `silently`."""
        if not self.open:
            return
        self.open, self._dark = False, silently
        self._route.connections.pop(self, None)
        if not silently:
            self.back.end()
            self.there.end()

    def refuse(self) -> None:
        """Reset a client that sends over it after its end; a dark machine answers nothing."""
        if not self._dark:
            self.back.end()

    def lighten(self) -> None:
        """Tell the client that the connection has ended, now that the node's machine is back."""
        self._dark = False
        self.back.end()

    def heal(self) -> None:
        """Continue after a partition: held messages arrive late, or the connection breaks."""
        streams = [stream for stream in (self.there, self.back) if stream.held is not None and not stream.stalled]
        if streams and self.network.random() >= _LATE:
            self.reset()
            return
        for stream in streams:
            if self.network.retransmits:
                stream.retransmit()
            else:
                stream.release()


class Path:
    """One direction between a machine and a node.

    Attributes:
        shortest: The seconds that every packet takes.
        spread: Additional seconds that a packet may take; usually far fewer.
        delay: More seconds that a packet may take while the path is slow.
        push_delay: More seconds that a push may take; replies that follow it on its connection wait for it.
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
        self.delay = self.push_delay = self.loss = self.tears = 0.0

    @property
    def troubled(self) -> bool:
        """True if the path has a fault."""
        return self.blocked or max(self.delay, self.push_delay, self.loss, self.tears) > 0


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
