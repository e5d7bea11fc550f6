"""Sockets of virtual machines: the asyncio transports that an event loop returns, over the virtual network.

`VirtualTransport` does what asyncio's transports do, for asyncio's streams and their replacements. Bytes that the
machine does not accept wait in the transport, which asks the protocol to pause. Received bytes wait while reading is
paused. The transport reports the end to the protocol once.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import struct
from collections.abc import Callable
from typing import Any, Final

from redsync.testing.simulator.loop import Host
from redsync.testing.simulator.network import ACCEPTED, CLOSED, CONNECT, Connection, End, Mark, Network

__all__ = ["VirtualSocket", "VirtualTransport"]

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
        self._unread: list[bytes | Mark] | None = None
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
        elif self._unread is not None:
            self._unread.append(message)
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

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return the protocol."""
        return self._protocol  # type: ignore[no-any-return]

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return the socket; for all other names, the default."""
        return self._socket if name == "socket" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set how many bytes may wait here before the protocol must pause."""
        self._high = _HIGH if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        """Return how many bytes wait here."""
        return len(self._unsent)

    def pause_reading(self) -> None:
        """Keep received bytes, until `resume_reading`."""
        self._unread = [] if self._unread is None else self._unread

    def resume_reading(self) -> None:
        """Pass received bytes to the protocol, now and from now on."""
        unread, self._unread = self._unread or [], None
        for message in unread:
            self.receive(self.connection, message)

    def is_reading(self) -> bool:
        """Return whether the protocol gets received bytes."""
        return self._unread is None and not self._closing
