"""Watches of the driver for asyncio: `watches` has the rules; here each witness has a task."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from redsync._drivers.aio_channels import open_channel
from redsync._drivers.nodes import Node
from redsync._drivers.redis_py import Addresses, new_connection
from redsync._drivers.watches import ASK_EVERY, Follower

if TYPE_CHECKING:
    from redsync._drivers.locators import Locator, Witness

__all__ = ["AioWatches"]


class AioWatches:
    """Follows the servers of a client's nodes."""

    def __init__(
        self, nodes: Sequence[Node], timeout: float, clock: Callable[[], float], on_moved: Callable[[Node], None]
    ) -> None:
        """Make the watches; arguments as for `Watches`."""
        self._of_node: Final = {
            node.index: _Watch(node, node.locator, timeout, clock, on_moved)
            for node in nodes
            if node.locator is not None
        }

    def start(self) -> None:
        """Begin to ask."""
        for watch in self._of_node.values():
            watch.start()

    async def locate(self, node: Node) -> None:
        """Return as soon as the place of a node's server is known.

        Raises:
            ConnectionError: The witnesses did not report it in time.
            ConfigurationError: They never will.
        """
        if node.index in self._of_node:
            await self._of_node[node.index].locate()

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """The tasks that ask; they end when cancelled."""
        return [task for watch in self._of_node.values() for task in watch.tasks]


class _Watch(Follower):
    """A task for each witness."""

    def __init__(self, node: Node, locator: Locator, *settings: Any) -> None:
        super().__init__(node, locator, *settings)
        self._addresses: Final = [Addresses() for _ in locator.witnesses]
        self._news = asyncio.Event()
        self.tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self.tasks = [
            loop.create_task(self._follow(index, witness), name=f"redsync-watch-{witness.address}")
            for index, witness in enumerate(self._locator.witnesses)
        ]

    async def locate(self) -> None:
        locator = self._locator
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout / 2
        while locator.present is None and locator.conflict is None and (left := deadline - loop.time()) > 0:
            self._news.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._news.wait()
        self._take_place()

    async def _follow(self, index: int, witness: Witness) -> None:
        while True:
            try:
                await self._ask(index, witness)
            except Exception as error:
                self._note_failure(index, error)
                self._news.set()
            await asyncio.sleep(ASK_EVERY)

    async def _ask(self, index: int, witness: Witness) -> None:
        async with asyncio.timeout(self._timeout):
            connection = new_connection(witness.pool, self._timeout)
            channel = await open_channel(connection, self._addresses[index])
        try:
            while True:
                async with asyncio.timeout(self._timeout):
                    replies = await channel.ask(*self._ask_now(index))
                moved = self._hear(index, replies)
                self._news.set()
                if moved:
                    self._on_moved(self._node)
                await asyncio.sleep(ASK_EVERY)
        finally:
            channel.close()
