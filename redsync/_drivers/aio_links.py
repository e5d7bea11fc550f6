"""Links of the asyncio driver: one connection per node. redis-py opens and authenticates it, so all its options work.

* **A socket**, where the system has epoll: the link takes the socket of the connection's asyncio transport, and is then
  the same as in a threaded client. The loop watches one descriptor for all links, see `aio_transport`.
* **A stream**: TLS, and systems without epoll. The link takes over the asyncio transport, and the loop hands received
  bytes to each link.
* **Calls**: fakeredis has no asyncio streams. A task awaits one command after the other.
"""

from __future__ import annotations

import asyncio
import os
import select
from abc import abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import hiredis
from redis.exceptions import ResponseError

from redsync._core.replies import MOST_BYTES, NOTHING, ReplyReader, next_reply
from redsync._drivers.channels import Channel, Talk, reply_error
from redsync._drivers.interruptions import HALF_READ
from redsync._drivers.links import BACKLOG_LIMIT, Link, QuietSocket, SocketLink, bound_silence, let_reset, one_by_one
from redsync._drivers.lookups import Lookups
from redsync._drivers.nodes import Node, describe_error

__all__ = ["AioLink", "CallingLink", "Receiver", "StreamLink", "TakenLink", "open_link"]

T = TypeVar("T")

_HAS_EPOLL: Final = hasattr(select, "epoll")

_READ_SIZE = 65536


class Receiver(NamedTuple):
    """The callbacks of a link that the loop reads.

    Attributes:
        receive: Called with the link, the instant, and what has arrived.
        break_off: Called with the link and the reason when no more will arrive.
        clock: Returns that instant.
    """

    receive: Callable[[Link, float, Any], None]
    break_off: Callable[[Link, str], None]
    clock: Callable[[], float]


class AioLink(Link):
    """The base of links on an event loop.

    Attributes:
        raw: True if there is a real connection.
    """

    raw = True

    @abstractmethod
    async def ask(self, *commands: bytes) -> list[Any]:
        """Send commands before the link is in use; return their replies, errors as values, without pushes."""

    async def _ask(self, commands: Sequence[bytes], more: Callable[[], Awaitable[bytes]]) -> list[Any]:
        """Return the replies to commands that were sent; `more` reads bytes, none at the connection's end."""
        replies: list[Any] = []
        size = 0
        while len(replies) < len(commands):
            reply = next_reply(self.gets)
            if reply is NOTHING:
                data = await more()
                size += len(data)
                if size > MOST_BYTES:
                    raise ConnectionError(f"sent more than {MOST_BYTES} bytes during the handshake")
                if not data:
                    raise ConnectionError("closed the connection during the handshake")
                self.feed(data)
            elif not isinstance(reply, hiredis.PushNotification):
                replies.append(reply)
        return replies

    async def talk(self, talk: Talk[T]) -> T:
        """Hold a conversation; return its result or raise its error."""
        replies: list[Any] = []
        while True:
            try:
                commands = talk.send(replies) if replies else next(talk)
            except StopIteration as stop:
                result: T = stop.value
                return result
            replies = await self.ask(*commands)

    @abstractmethod
    def use(self, receiver: Receiver) -> None:
        """Begin to receive what arrives from now on."""


class TakenLink(SocketLink, AioLink):
    """A link over the socket of an asyncio transport, which ends with that."""

    def __init__(self, node: Node, connection: Any) -> None:
        connection._reader = connection._writer = None
        super().__init__(node, Channel(connection, 0.0, 0.0))

    async def ask(self, *commands: bytes) -> list[Any]:
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(self._sock, b"".join(commands))
        return await self._ask(commands, partial(loop.sock_recv, self._sock, _READ_SIZE))

    def use(self, receiver: Receiver) -> None:
        """Do nothing: the transport polls the socket."""


class LoopLink(AioLink):
    """The base of links that the loop reads; it writes what they `keep`, too."""

    _receiver: Receiver | None = None
    _lost: str | None = None

    def use(self, receiver: Receiver) -> None:
        self._receiver = receiver
        if self._lost is not None:
            receiver.break_off(self, self._lost)

    def keep(self, data: bytes) -> None:
        self.write(data)

    def flush(self) -> None:
        """Do nothing: the asyncio transport sends its buffer automatically."""

    def forget(self) -> None:
        """Do nothing: a forked child can't use its parent's event loop, and must not touch it."""


class StreamLink(LoopLink, asyncio.Protocol):
    """A link over an asyncio transport."""

    swift = True

    def __init__(self, node: Node, connection: Any) -> None:
        super().__init__(node)
        # The writer closes its asyncio transport when it is collected, so keep it as long as this link.
        self._writer = connection._writer
        connection._reader = connection._writer = None
        self._asyncio_transport: Final[asyncio.Transport] = self._writer.transport
        reader = ReplyReader()
        self.gets = reader.gets
        self.feed = reader.feed
        self.has_more = reader.has_more
        self.send = self._asyncio_transport.write
        self._data = b""
        self._asking: asyncio.Future[None] | None = None
        self._asyncio_transport.set_protocol(self)
        self._asyncio_transport.set_write_buffer_limits(high=BACKLOG_LIMIT)
        sock = self._asyncio_transport.get_extra_info("socket")
        if sock is not None:
            bound_silence(sock)

    def use(self, receiver: Receiver) -> None:
        super().use(receiver)
        if data := self._take():
            receiver.receive(self, receiver.clock(), data)

    def write(self, data: bytes) -> None:
        self._asyncio_transport.write(data)

    def keep(self, data: bytes) -> None:
        # A new link begins with the commands that its node is owed, no matter how many.
        self._asyncio_transport.set_write_buffer_limits(high=BACKLOG_LIMIT + len(data))
        self._asyncio_transport.write(data)

    def _take(self) -> bytes:
        data, self._data = self._data, b""
        return data

    def data_received(self, data: bytes) -> None:
        """Hand received bytes on; called by the loop."""
        receiver = self._receiver
        if receiver is None:
            self._data += data
            self._stop_asking()
        else:
            try:
                receiver.receive(self, receiver.clock(), data)
            except BaseException:
                # An interruption may have come before `receive` could note it; otherwise this changes nothing.
                self.broken = self.broken or HALF_READ
                receiver.break_off(self, self.broken)
                raise

    def pause_writing(self) -> None:
        """Drop a node that does not read; called by the loop."""
        self._end(f"does not read: more than {BACKLOG_LIMIT} bytes wait for it")

    def eof_received(self) -> None:
        """Drop a node that closed the connection; called by the loop."""
        self._end("closed the connection")

    def connection_lost(self, error: Exception | None) -> None:
        """Drop a connection that has ended; called by the loop."""
        self._end("closed the connection" if error is None else describe_error(error))

    def _end(self, reason: str) -> None:
        self._lost = self._lost or reason
        self._stop_asking()
        if self._receiver is not None:
            self._receiver.break_off(self, reason)

    def _stop_asking(self) -> None:
        if self._asking is not None and not self._asking.done():
            self._asking.set_result(None)

    async def ask(self, *commands: bytes) -> list[Any]:
        self._asyncio_transport.write(b"".join(commands))
        return await self._ask(commands, self._more)

    async def _more(self) -> bytes:
        while not self._data and self._lost is None:
            self._asking = asyncio.get_running_loop().create_future()
            await self._asking
        return self._take()

    def shut(self) -> None:
        # close() would wait for a node that does not read.
        self._asyncio_transport.abort()

    def reset(self) -> None:
        sock = self._asyncio_transport.get_extra_info("socket")
        if sock is not None:
            let_reset(sock)
        self.shut()


class CallingLink(LoopLink):
    """A link to a node without an asyncio transport (fakeredis): each command is a call that a task awaits."""

    raw = False

    def __init__(self, node: Node, connection: Any) -> None:
        super().__init__(node)
        self.parts = one_by_one
        self._connection = connection
        self._commands: Final[asyncio.Queue[bytes]] = asyncio.Queue()
        self._answers: Final[deque[Any]] = deque()
        self._caller: asyncio.Task[None] | None = None
        self.feed = self._answers.extend
        self.gets = self._next

    def use(self, receiver: Receiver) -> None:
        super().use(receiver)
        self._caller = asyncio.get_running_loop().create_task(self._call(), name=f"redsync-calls-{self.node.address}")

    def write(self, data: bytes) -> None:
        self._commands.put_nowait(data)

    async def ask(self, *commands: bytes) -> list[Any]:
        return [await self._answer(command) for command in commands]

    async def _answer(self, command: bytes) -> Any:
        await self._connection.send_packed_command([command], check_health=False)
        try:
            return await self._connection.read_response()
        except ResponseError as error:
            return reply_error(error)

    async def _call(self) -> None:
        receiver = self._receiver
        assert receiver is not None, "the link is in use"
        try:
            while True:
                answer = await self._answer(await self._commands.get())
                receiver.receive(self, receiver.clock(), [answer])
        except BaseException as error:
            # Even if cancelled, like all tasks when a loop ends: no more answers will come.
            receiver.break_off(self, describe_error(error))
            if not isinstance(error, Exception):
                raise

    def _next(self) -> Any:
        return self._answers.popleft() if self._answers else NOTHING

    def shut(self) -> None:
        if self._caller is not None:
            self._caller.cancel()
        self._connection._reader = self._connection._writer = None


async def open_link(node: Node, timeout: float, lookups: Lookups | None = None) -> AioLink:
    """Connect and authenticate.

    Args:
        node: The node.
        timeout: Seconds for connecting, and for each answer.
        lookups: The lookups of the client's earlier connects.

    Raises:
        OSError, RedisError: The node was unreachable or refused the client.
    """
    connection = node.make_connection(timeout)
    try:
        await (lookups or Lookups()).connect(connection, timeout)
    except BaseException:
        await connection.disconnect(nowait=True)
        raise
    if not isinstance(connection._writer, asyncio.StreamWriter):
        return CallingLink(node, connection)
    asyncio_transport = connection._writer.transport
    ask = asyncio_transport.get_extra_info
    # A virtual socket of the simulator has no duplicates.
    if not _HAS_EPOLL or ask("ssl_object") is not None or not hasattr(ask("socket"), "dup"):
        return StreamLink(node, connection)
    try:
        connection._sock = QuietSocket(fileno=os.dup(ask("socket").fileno()))
    finally:
        asyncio_transport.abort()
    return TakenLink(node, connection)
