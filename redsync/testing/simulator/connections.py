"""Connections of the virtual network, as kernels keep them.

A connection carries bytes in order, in each direction; between connections there is no order. Bytes that are sent at
once may arrive in pieces, and the connection may end between two of them. As with TCP, nothing is lost without the
connection's end: a lost packet stalls its direction, and then the connection breaks. The lost bytes may be a request,
which is then never executed, or the reply to a request that was. A partition holds what is sent until it is healed:
then it arrives late, or the connection turns out to be broken, as the seed says. So old commands of a client may arrive
minutes after it has given up their connection. If the network `retransmits`, held bytes wait on until their sender
tries again. As with TCP, the pauses between tries grow during the partition, so a new connection is quicker.

A client that resets a connection takes back what its machine still held; bytes under way may arrive. Or else, with the
probability `kept`, the machine goes on sending, as the machine of a forked process's parent may. No reset gets through
a partition: the node learns of it when it next sends something.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

from redsync.testing.simulator.loop import Host

if TYPE_CHECKING:
    from redsync.testing.simulator.network import Network, Path, Route
    from redsync.testing.simulator.runner import SimulatedRunner

__all__ = ["ACCEPTED", "CLOSED", "CONNECT", "Connection", "End", "Mark"]


class Mark:
    """What a connection carries besides bytes."""

    def __init__(self, name: str) -> None:
        self._name: Final = name

    def __repr__(self) -> str:
        return f"<{self._name}>"


CONNECT: Final = Mark("connect")
"""The first message to a node."""

ACCEPTED: Final = Mark("accepted")
"""The first message from a node."""

CLOSED: Final = Mark("closed")
"""The last message of a direction: its sender has closed the connection, or it has broken."""

_STALL = 1.0
"""Seconds from a lost packet to the end of its connection, at most."""

_LONGEST_RETRANSMISSION = 120.0
"""Seconds: the longest pause of TCP between two retransmissions (RFC 6298 asks for at least 60, Linux has 120)."""

_LATE = 0.6
"""The probability that a connection survives a partition, and held bytes arrive late."""


class End(Protocol):
    """A receiver of a connection's messages."""

    def receive(self, connection: Connection, message: bytes | Mark) -> None:
        """Take a message, `CLOSED` for the last one."""
        ...


class Stream:
    """One direction of a connection.

    Attributes:
        arrives: When the latest message that has left arrives.
        held: The messages that can't leave now; None if nothing is held.
        stalled: Nothing gets through any more.
        size: How many bytes have not arrived yet.
    """

    __slots__ = (
        "_connection",
        "_end",
        "_held_since",
        "_host",
        "_path",
        "arrives",
        "held",
        "size",
        "stalled",
    )

    def __init__(self, connection: Connection, path: Path, host: Host | None, end: End) -> None:
        self._connection: Final = connection
        self._path: Final = path
        self._host: Final = host
        self._end: Final = end
        self.arrives = self._held_since = 0.0
        self.held: list[bytes | Mark] | None = None
        self.stalled = False
        self.size = 0

    def send(self, message: bytes | Mark) -> None:
        """Send a message; it arrives after all that were sent before, or never."""
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
        self._send(message, connection.network.random)

    def _send(self, message: bytes | Mark, rng: Callable[[], float]) -> None:
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
        self.arrives = arrival = max(arrival, self.arrives)
        if path.tears and message.__class__ is bytes and connection.network.wire() < path.tears:
            message = message[: 1 + int(connection.network.wire() * (len(message) - 1))]
            timeline.schedule(arrival, self._host, self._arrive, (message,))
            timeline.schedule(arrival, None, connection.reset)
            self.held, self.stalled = [], True
            return
        timeline.schedule(arrival, self._host, self._arrive, (message,))

    def drop(self) -> bool:
        """Drop held messages and send no later ones; return whether something may still get through."""
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
        """Tell the receiver after a while that the connection has ended, if it can be told."""
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
        """Let held messages go on their way."""
        held, self.held = self.held or (), None
        for message in held:
            if self._connection.open:
                self._send(message, self._connection.network.random)


class Connection:
    """A connection from a client on a machine to a node.

    Attributes:
        network: The network.
        host: The machine.
        client: The name of the client that made it, as far as that is known.
        requests: What the client has sent over it since taking it into use, in order; None before that.
        served: The requests that the node has answered since then, with the replies, in order, until the client has
            them.
        maker: The driver that made it; None if it is no client of ours.
        there: Carries requests to the node.
        back: Carries replies to the client.
        open: Packets that are under way still arrive.
        given_up: The client no longer uses it.
        aborted: Its machine no longer knows it either.
        waits_for_room: The client has more to send than the machine takes.
    """

    __slots__ = (
        "_caller",
        "_dark",
        "_route",
        "aborted",
        "back",
        "client",
        "given_up",
        "host",
        "maker",
        "network",
        "open",
        "requests",
        "served",
        "there",
        "waits_for_room",
    )

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
        """End it from the client's side; messages already sent still arrive."""
        self.given_up = True
        self.there.send(CLOSED)

    def abort(self) -> None:
        """Give it up from the client's side; messages that have not left the machine never will."""
        kept = self.network.kept
        if kept and self.network.random() < kept:
            self.hang_up()
            return
        self.given_up = self.aborted = True
        if self.open and self.there.drop():
            self.there.send(CLOSED)

    def make_room(self) -> None:
        """Let the client send more, because something has arrived."""
        self.network.timeline.schedule(self.network.timeline.now, self.host, self._caller.receive, (self, b""))

    def reset(self, *, silently: bool = False) -> None:
        """Break it: messages under way are lost, and both ends are told unless `silently`."""
        if not self.open:
            return
        self.open, self._dark = False, silently
        self._route.connections.pop(self, None)
        if not silently:
            self.back.end()
            self.there.end()

    def refuse(self) -> None:
        """Answer a client that sends over it although it has ended; where all is dark nobody answers."""
        if not self._dark:
            self.back.end()

    def lighten(self) -> None:
        """End the darkness at the node's end, and tell the client that the connection has ended."""
        self._dark = False
        self.back.end()

    def heal(self) -> None:
        """Go on after a partition: held messages arrive late, or the connection breaks."""
        streams = [stream for stream in (self.there, self.back) if stream.held is not None and not stream.stalled]
        if streams and self.network.random() >= _LATE:
            self.reset()
            return
        for stream in streams:
            if self.network.retransmits:
                stream.retransmit()
            else:
                stream.release()
