"""Watches of the driver for asyncio: `watches` has the rules; here each witness has a task."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from redis.exceptions import ResponseError

from redsync._drivers.channels import reply_error
from redsync._drivers.lookups import Lookups
from redsync._drivers.nodes import Node, new_connection
from redsync._drivers.watches import ASK_EVERY, Follower

if TYPE_CHECKING:
    from redsync._drivers.locators import Locator, Witness

__all__ = ["AioWatches"]


class AioWatches:
    """Follows the servers of a client's nodes."""

    def __init__(
        self,
        nodes: Sequence[Node],
        timeout: float,
        clock: Callable[[], float],
        on_moved: Callable[[Node], None],
        lookups: Lookups,
    ) -> None:
        """Make the watches; arguments as for `Watches`, and the client's lookups."""
        self._of_node: Final = {
            node.index: _Watch(lookups, node, node.locator, timeout, clock, on_moved)
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

    def __init__(self, lookups: Lookups, node: Node, locator: Locator, *settings: Any) -> None:
        super().__init__(node, locator, *settings)
        self._lookups: Final = lookups
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
            await _pause()

    async def _ask(self, index: int, witness: Witness) -> None:
        connection = new_connection(witness.pool, self._timeout, protocol=2)
        try:
            async with asyncio.timeout(self._timeout):
                await self._lookups.connect(connection, self._timeout)
            while True:
                async with asyncio.timeout(self._timeout):
                    replies = await self._question(index, connection)
                moved = self._hear(index, replies)
                self._news.set()
                if moved:
                    self._on_moved(self._node)
                await _pause()
        finally:
            await connection.disconnect(nowait=True)

    async def _question(self, index: int, connection: Any) -> list[Any]:
        questions = self._ask_now(index)
        await connection.send_packed_command(questions, check_health=False)
        replies = []
        for _ in questions:
            try:
                replies.append(await connection.read_response(disable_decoding=True))
            except ResponseError as error:
                replies.append(reply_error(error))
        return replies


async def _pause() -> None:
    """Sleep until the next question is due.

    Raises:
        CancelledError: The task was cancelled, now or before: redis-py sends through `asyncio.wait_for`, which swallows
            some cancellations on Python 3.11, and a close of the client waits for the end of this task.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
    await asyncio.sleep(ASK_EVERY)
