"""A TCP proxy that injects network faults into the connections of one node; each fault is a switch.

The proxy knows connections and bytes, not commands. Each connection has two directions, and each direction is a queue
of the pieces that arrived. Three rules keep the faults realistic:

- **Order holds.** A piece is delivered after the one before it, whatever was switched meanwhile.
- **TCP never skips bytes.** A direction that has lost some (`drop_requests`, `drop_replies`) delivers nothing more, not
  even the end. Otherwise a client would take the reply to one command for the reply to another.
- **What is held is late, not lost.** After a partition (`blackhole`) TCP retransmits: the node then executes commands
  whose sender gave up long ago.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable
from typing import Self, cast

__all__ = ["FaultProxy"]

_HOST = "127.0.0.1"
_GARBAGE = b"\x00 no reply type begins with a zero\r\n"
_END = b""
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER on, for no time: closing sends RST and discards unsent bytes


class FaultProxy:
    """A proxy on a free loopback port in front of the server on `target_port`; switches turn faults on and off.

    It runs on its own thread until `close()`; any thread may set attributes and call methods. The server may be down
    meanwhile: the proxy resets a connection that it can't pass on. After `close()` switches have no effect.

    Attributes:
        port: The loopback port to connect to.
        drop_requests: Drop what clients send from now on; the node never executes it.
        drop_replies: Drop what the node sends from now on; it still executes the commands.
        refuse: Reset new connections; existing ones continue.
        half_replies: Deliver only the first half of the next reply, then close that connection; with `drop_replies` on
            too, leave it open and silent. Resets itself to False after one reply.
        garbage: Replace the next reply by bytes that are not RESP. Resets itself to False after one reply.

    Example:
        ```python
        with LocalNodes(1) as nodes, FaultProxy(nodes.ports[0]) as proxy, Client([proxy.url]) as client:
            proxy.drop_replies = True
        ```
    """

    port: int
    drop_requests: bool
    drop_replies: bool
    refuse: bool
    half_replies: bool
    garbage: bool

    def __init__(self, target_port: int) -> None:
        if not isinstance(target_port, int) or isinstance(target_port, bool) or not 1 <= target_port <= 65535:
            raise ValueError(f"target_port must be a server's port, from 1 to 65535, not {target_port!r}")
        self.drop_requests = self.drop_replies = self.refuse = self.half_replies = self.garbage = False
        self._delay, self._blackhole = 0.0, False
        self._target_port = target_port
        self._links: set[_Link] = set()
        listener = socket.create_server((_HOST, 0))
        self.port = listener.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._closing = asyncio.Event()
        self._turn = threading.RLock()  # else a call could wait for a loop that another thread has ended
        self._thread = threading.Thread(target=self._run, args=(listener,), name="redsync-proxy", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """The URL to give to a client instead of the node's own."""
        return f"redis://{_HOST}:{self.port}/0"

    @property
    def delay(self) -> float:
        """Delay in seconds of each piece, each way; a round trip takes twice that. Also applies to pieces under way."""
        return self._delay

    @delay.setter
    def delay(self, seconds: float) -> None:
        self._delay = seconds
        self._apply()

    @property
    def blackhole(self) -> bool:
        """Hold all bytes both ways, as a partition does, but accept connections; switching it off delivers them."""
        return self._blackhole

    @blackhole.setter
    def blackhole(self, on: bool) -> None:
        self._blackhole = on
        self._apply()

    def cut(self) -> None:
        """Reset all connections, on both sides; bytes under way are lost. New connections are accepted."""
        self._apply(lambda _: True)

    def heal(self) -> None:
        """Switch all faults off, deliver what was held, and reset the connections that have lost bytes."""
        self.drop_requests = self.drop_replies = self.refuse = self.half_replies = self.garbage = False
        self._delay, self._blackhole = 0.0, False
        self._apply(lambda link: any(direction.is_broken for direction in link.directions))

    def close(self) -> None:
        """Reset all connections and free the port; the second time, do nothing."""
        if not self._thread.is_alive():
            return  # Perhaps this is the child of a fork, in which no thread will ever return the turn.
        with self._turn:
            if self._thread.is_alive():
                self._loop.call_soon_threadsafe(self._closing.set)
                self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _run(self, listener: socket.socket) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve(listener))

    async def _serve(self, listener: socket.socket) -> None:
        server = await self._loop.create_server(lambda: _End(_Link(self), is_client=True), sock=listener)
        await self._closing.wait()
        for link in list(self._links):
            link.abort()
        # A server closed while it accepts a connection leaves that socket open.
        while unfinished := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(unfinished)
        server.close()
        await _let_loop_turn()

    def _apply(self, aborts: Callable[[_Link], bool] = lambda _: False) -> None:
        """Apply the switches to what is under way, and abort some links; return when that is done."""

        async def apply() -> None:
            await _let_loop_turn()  # a client that has just connected becomes a link
            for link in list(self._links):
                if aborts(link):
                    link.abort()
                for direction in link.directions:
                    direction.pump()
            await _let_loop_turn()  # aborted sockets are closed

        if not self._thread.is_alive():
            return
        with self._turn:
            if self._thread.is_alive():
                asyncio.run_coroutine_threadsafe(apply(), self._loop).result()


async def _let_loop_turn() -> None:
    for _ in range(3):  # loop turns: accepting makes a task, the task a transport, and that calls its protocol
        await asyncio.sleep(0)


class _Link:
    """A client's connection, joined to the proxy's own connection to the node."""

    def __init__(self, proxy: FaultProxy) -> None:
        self.proxy = proxy
        self.directions = (_Direction(proxy, is_replies=False), _Direction(proxy, is_replies=True))
        self.dialling: asyncio.Task[None] | None = None  # the loop holds tasks only weakly

    async def dial(self) -> None:
        target = (_HOST, self.proxy._target_port)
        try:
            await self.proxy._loop.create_connection(lambda: _End(self, is_client=False), *target)
        except OSError:  # the node is down, which the client sees as a reset
            self.abort()

    def abort(self) -> None:
        self.proxy._links.discard(self)
        if self.dialling is not None:
            self.dialling.cancel()
        for direction in self.directions:
            if direction.sink is not None and not direction.sink.is_closing():
                direction.sink.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                direction.sink.abort()


class _End(asyncio.Protocol):
    """One of the two sockets of a link."""

    def __init__(self, link: _Link, *, is_client: bool) -> None:
        self._link = link
        self._is_client = is_client
        self._sends, self._gets = link.directions if is_client else reversed(link.directions)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        link, proxy = self._link, self._link.proxy
        self._gets.sink = cast("asyncio.Transport", transport)
        if self._is_client and not proxy.refuse and not proxy._closing.is_set():
            proxy._links.add(link)
            link.dialling = proxy._loop.create_task(link.dial())
        elif link in proxy._links:
            self._gets.pump()
        else:  # refused, or cut while it was being made
            link.abort()

    def data_received(self, data: bytes) -> None:
        self._sends.feed(data)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  a reset is passed on as an end
        self._sends.feed(_END)
        if all(direction.sink is not None and direction.sink.is_closing() for direction in self._link.directions):
            self._link.proxy._links.discard(self._link)


class _Direction:
    """The bytes that one end of a link sends and the other receives, in order."""

    def __init__(self, proxy: FaultProxy, *, is_replies: bool) -> None:
        self.sink: asyncio.Transport | None = None  # the transport to write to, once connected
        self.is_broken = False  # has lost bytes
        self._proxy = proxy
        self._is_replies = is_replies
        self._under_way: deque[tuple[float, bytes]] = deque()  # each with the instant it arrived here
        self._timer: asyncio.TimerHandle | None = None

    def feed(self, piece: bytes) -> None:
        proxy = self._proxy
        if self.is_broken:
            return
        if piece and self._is_replies and proxy.half_replies:
            proxy.half_replies = False
            self._append(piece[: max(1, len(piece) // 2)])
            if not proxy.drop_replies:
                self._append(_END)
            self.is_broken = True
        elif proxy.drop_replies if self._is_replies else proxy.drop_requests:
            self.is_broken = True
        elif piece and self._is_replies and proxy.garbage:
            proxy.garbage = False
            self._append(_GARBAGE)
        else:
            self._append(piece)

    def _append(self, piece: bytes) -> None:
        self._under_way.append((self._proxy._loop.time(), piece))
        self.pump()

    def pump(self) -> None:
        """Deliver what is due, and schedule a call for the next piece."""
        proxy, loop = self._proxy, self._proxy._loop
        if self._timer is not None:
            self._timer.cancel()
        while self._under_way and self.sink is not None and not proxy.blackhole:
            arrived_at, piece = self._under_way[0]
            if loop.time() < arrived_at + proxy.delay:
                self._timer = loop.call_at(arrived_at + proxy.delay, self.pump)
                return
            self._under_way.popleft()
            if not piece:
                self.sink.close()
            elif not self.sink.is_closing():
                self.sink.write(piece)
