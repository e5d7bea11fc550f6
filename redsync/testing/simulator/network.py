"""The virtual network: paths between machines and nodes with their faults, and connections, as kernels keep them.

`VirtualTransport` is a machine's end of a connection: it does what asyncio's transports do, for asyncio's streams and
their replacements. Bytes that the machine does not accept wait in the transport, which asks the protocol to pause;
received bytes never wait. The transport reports the end to the protocol once.

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

import asyncio
import errno
import socket
import struct
from collections.abc import Callable
from enum import Enum
from typing import Any, Final, Protocol

from redsync.testing.simulator.loop import Host, Timeline

__all__ = ["ACCEPTED", "CLOSED", "CONNECT", "Connection", "Mark", "Network", "Route", "Server", "VirtualTransport"]


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


class Server(End, Protocol):
    """A server that machines may connect to."""

    @property
    def name(self) -> str:
        """Its name in the trace and in URLs."""
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
            if self is connection.there:
                if message is CLOSED:
                    connection.forget()
                elif connection.waits_for_room:
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
        self.forget()
        if not silently:
            self.back.end()
            self.there.end()

    def forget(self) -> None:
        """Take it out of its route: the client has closed it, and the node knows."""
        self._route.connections.pop(self, None)

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


_HIGH, _LOW = 64 << 10, 16 << 10
"""Bytes waiting here at which the protocol must pause, and may resume; as in asyncio."""


class VirtualSocket:
    """A transport's socket, which has only options.

    Attributes:
        family: The family of any TCP socket.
        resets: True if closing it resets the connection.
    """

    family: Final = socket.AF_INET
    resets = False

    def setsockopt(self, level: int, option: int, value: int | bytes) -> None:
        """Set an option; most have no effect here."""
        if (level, option) == (socket.SOL_SOCKET, socket.SO_LINGER) and isinstance(value, bytes):
            self.resets = struct.unpack("ii", value) == (1, 0)


class VirtualTransport(asyncio.Transport):
    """A client's end of a connection.

    Attributes:
        connection: The connection.
    """

    def __init__(self, network: Network, machine: Host, node: End, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop: Final = loop
        self._socket: Final = VirtualSocket()
        self.connection: Final = network.dial(machine, self, node)
        self._protocol: Any = None
        self._opening: asyncio.Future[None] | None = None
        self._unsent = bytearray()
        self._high, self._low = _HIGH, _LOW
        self._closing = self._ended = self._pausing = False

    async def open(self, factory: Callable[[], asyncio.BaseProtocol]) -> asyncio.BaseProtocol:
        """Connect; return the protocol.

        Raises:
            ConnectionRefusedError: No server listens there.
        """
        self._opening = self._loop.create_future()
        self.connection.there.send(CONNECT)
        try:
            await self._opening
        except BaseException:
            self.connection.abort()
            raise
        self._opening = None
        self._protocol = factory()
        self._protocol.connection_made(self)
        return self._protocol  # type: ignore[no-any-return]

    # For the network.

    def receive(self, _connection: Connection, message: bytes | Mark) -> None:
        """Receive a message."""
        opening = self._opening
        if opening is not None and not opening.done():
            if message is ACCEPTED:
                opening.set_result(None)
            else:
                opening.set_exception(ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed"))
        elif self._ended or self._protocol is None:
            return
        elif not message:
            self._send_more()
        elif message is CLOSED:
            self._hear_end()
        else:
            self._protocol.data_received(message)

    def _hear_end(self) -> None:
        if not self._closing and not self._protocol.eof_received():
            self.close()
        self._end(None)

    def _end(self, error: Exception | None) -> None:
        if not self._ended:
            self._ended = self._closing = True
            self._unsent.clear()
            self._loop.call_soon(self._protocol.connection_lost, error)

    # The interface that asyncio demands of a transport.

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send data; keep what the machine does not accept now."""
        if self._closing or not data:
            return
        connection = self.connection
        room = connection.network.room - connection.there.size
        if not self._unsent and len(data) <= room:
            connection.there.send(bytes(data))
            return
        self._unsent += data
        self._send_more()
        if len(self._unsent) > self._high and not self._pausing:
            self._pausing = True
            self._protocol.pause_writing()

    def _send_more(self) -> None:
        connection = self.connection
        room = connection.network.room - connection.there.size
        if self._unsent and room > 0:
            with memoryview(self._unsent) as unsent:
                part = bytes(unsent[:room])
            del self._unsent[:room]
            connection.there.send(part)
        connection.waits_for_room = bool(self._unsent)
        if self._pausing and len(self._unsent) <= self._low:
            self._pausing = False
            self._protocol.resume_writing()
        if self._closing and not self._unsent and not self._ended:
            self._leave()

    def close(self) -> None:
        """Close when everything is sent."""
        if not self._closing:
            self._closing = True
            if not self._unsent:
                self._leave()

    def abort(self) -> None:
        """Close at once; bytes that the machine has not accepted are lost."""
        self._closing = True
        self._unsent.clear()
        if not self._ended:
            self._leave()

    def _leave(self) -> None:
        if self._socket.resets:
            self.connection.abort()
        elif not self.connection.given_up:
            self.connection.hang_up()
        self._end(None)

    def vanish(self) -> None:
        """Report nothing from now on: the simulation is over."""
        self._closing = self._ended = True

    def is_closing(self) -> bool:
        """Return whether it is closed, or will be when everything is sent."""
        return self._closing

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Replace the protocol."""
        self._protocol = protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return the socket; for all other names, the default."""
        return self._socket if name == "socket" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set how many bytes may wait here before the protocol must pause."""
        self._high = _HIGH if high is None else high
        self._low = self._high // 4 if low is None else low
