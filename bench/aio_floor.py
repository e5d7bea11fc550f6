"""The floor on an event loop: one pipelined connection per node for all tasks, and one future per round.

Like `bench.floor`, it omits everything that a lock does not need on a good day.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any

import hiredis

from bench.floor import ACQUIRE, RELEASE, pack

__all__ = ["BareAioLock", "BareAioQuorum"]


class _Round:
    """One command sent to all nodes."""

    __slots__ = ("future", "granted")

    def __init__(self, future: asyncio.Future[bool]) -> None:
        self.future = future
        self.granted = 0


class _Node(asyncio.Protocol):
    """One connection; the n-th reply belongs to the n-th round."""

    def __init__(self, majority: int) -> None:
        self._reader = hiredis.Reader()
        self._majority = majority
        self.pending: deque[_Round] = deque()
        self.answer: asyncio.Future[Any] | None = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.write = transport.write

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        gets, pending, majority = self._reader.gets, self.pending, self._majority
        while (reply := gets()) is not False:
            if self.answer is not None:
                self.answer.set_result(reply)
                self.answer = None
                continue
            turn = pending.popleft()
            if reply == 1:
                turn.granted += 1
                if turn.granted == majority and not turn.future.done():
                    turn.future.set_result(True)

    async def load(self, script: bytes) -> bytes:
        """Load a script and return its hash; call this before the first round."""
        self.answer = asyncio.get_running_loop().create_future()
        self.write(pack((b"SCRIPT", b"LOAD", script)))
        return await self.answer


class BareAioQuorum:
    """Connections to all nodes, and rounds over them, for any number of tasks on one loop."""

    def __init__(self) -> None:
        self.nodes: list[_Node] = []
        self.shas: list[bytes] = []

    async def connect(self, ports: Sequence[int]) -> None:
        """Connect and load the scripts."""
        self._loop = loop = asyncio.get_running_loop()
        majority = len(ports) // 2 + 1
        for port in ports:
            _, node = await loop.create_connection(lambda: _Node(majority), "127.0.0.1", port)
            self.shas = [await node.load(script) for script in (ACQUIRE, RELEASE)]
            self.nodes.append(node)

    async def round(self, data: bytes) -> bool:
        """Send a command to all nodes; return once a majority has granted it."""
        turn = _Round(self._loop.create_future())
        for node in self.nodes:
            node.pending.append(turn)
            node.write(data)
        return await turn.future

    def close(self) -> None:
        """Close the connections."""
        for node in self.nodes:
            node.transport.abort()


class BareAioLock:
    """The floor of acquire and release: one name, one owner."""

    def __init__(self, quorum: BareAioQuorum, name: str, lease_ms: int = 30_000) -> None:
        key, owner = f"floor:{{{name}}}".encode(), f"owner-of-{name}".encode()
        acquire, release = quorum.shas
        self._quorum = quorum
        self._acquire = pack((b"EVALSHA", acquire, 1, key, owner, 1, lease_ms))
        self._release = pack((b"EVALSHA", release, 1, key, owner))

    async def acquire(self) -> bool:
        """Acquire the lock on a majority of nodes."""
        return await self._quorum.round(self._acquire)

    async def release(self) -> None:
        """Release the lock."""
        await self._quorum.round(self._release)
