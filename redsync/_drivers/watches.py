"""Watches: they poll the witnesses of a node for its server.

Each witness has a thread, or a task, because a silent one must not delay the others. A message about a failover could
be lost, so a watch polls, twice a second, which costs a witness a few microseconds. So a client follows a failover at
most half a second after a majority of the witnesses reports it.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, Final, TypeAlias

from redsync._core.interruptions import expected
from redsync._drivers.discovery import Locator
from redsync._drivers.handshake_connections import HandshakeConnection, HandshakeSteps, open_blocking, open_connection
from redsync._drivers.nodes import Node, reason_of
from redsync._drivers.redis_py import new_connection
from redsync.exceptions import ConfigurationError

__all__ = ["AioWatches", "Watches"]

_ASK_EVERY: Final = 0.5
"""Seconds between two questions to a witness."""

Watch: TypeAlias = tuple[Node, Locator, int]
"""A node, what is known about its server, and the index of the witness to ask."""


class _AnyWatches:
    """Follow the servers of a client's nodes; the common base of both flavours."""

    _guard: AbstractContextManager[Any]  # guards the locators
    _notify: Callable[[], None]  # called with the guard held, once a locator knows more

    def __init__(
        self, nodes: Sequence[Node], timeout: float, clock: Callable[[], float], on_moved: Callable[[Node], None]
    ) -> None:
        """Make the watches.

        Args:
            nodes: The client's nodes; those with a fixed address need no watch.
            timeout: Seconds for which a witness may be silent; `locate` waits half of that.
            clock: The client's clock, in seconds.
            on_moved: Called with a node that has another server now.
        """
        self._timeout: Final = timeout
        self._clock: Final = clock
        self._on_moved: Final = on_moved
        self._all: Final[list[Watch]] = [
            (node, node.locator, index)
            for node in nodes
            if node.locator is not None
            for index in range(len(node.locator.witnesses))
        ]

    def _question(self, watch: Watch) -> HandshakeSteps[None]:
        """Ask a witness once, and record its answer."""
        node, locator, index = watch
        asked_at = self._clock()
        replies = yield list(locator.questions)
        with self._guard:
            before = locator.present
            locator.note(index, replies, asked_at)
            has_moved = locator.present not in (None, before) or node.moved() is not None
            self._notify()
        if has_moved:
            self._on_moved(node)

    def _connection(self, watch: Watch) -> Any:
        """Return a new, unconnected redis-py connection to a witness."""
        _, locator, index = watch
        return new_connection(locator.witnesses[index].pool, self._timeout)

    def _note_failure(self, watch: Watch, error: BaseException) -> None:
        """Record why a witness can't be asked."""
        _, locator, index = watch
        with self._guard:
            reason = reason_of(error, locator.witnesses[index].address, locator.reports[index])
            locator.note_failure(index, reason)
            self._notify()


def _name(watch: Watch) -> str:
    _, locator, index = watch
    return f"redsync-watch-{locator.witnesses[index].address}"


def _is_known(locator: Locator) -> bool:
    return locator.present is not None or locator.conflict is not None


def _take_location(node: Node, locator: Locator) -> None:
    if locator.conflict is not None:
        raise ConfigurationError(locator.conflict)
    if locator.present is None:
        raise ConnectionError(locator.unknown_reason)
    node.location = locator.present


class Watches(_AnyWatches):
    """Those of the driver for threads: a thread for each witness."""

    def __init__(self, *settings: Any) -> None:
        """Make the watches; settings as for `AioWatches`."""
        super().__init__(*settings)
        # Also guards the attributes below.
        self._guard = self._news = threading.Condition()
        self._notify = self._news.notify_all
        self._stopping = False
        self._channels: Final[set[HandshakeConnection]] = set()
        self._threads: Final = [
            threading.Thread(target=self._follow, args=(watch,), name=_name(watch), daemon=True) for watch in self._all
        ]

    def start(self) -> None:
        """Begin to ask."""
        for thread in self._threads:
            thread.start()

    def locate(self, node: Node) -> None:
        """Return as soon as the place of a node's server is known.

        Raises:
            ConnectionError: The witnesses did not report it in time.
            ConfigurationError: They never will.
        """
        if (locator := node.locator) is not None:
            with self._news:
                self._news.wait_for(lambda: _is_known(locator) or self._stopping, self._timeout / 2)
                _take_location(node, locator)

    def stop(self) -> None:
        """End all questions, and wait briefly for their end."""
        with self._news:
            self._stopping = True
            self._news.notify_all()
            for channel in self._channels:
                if channel.sock is not None:
                    with expected(OSError):
                        channel.sock.shutdown(2)
        for thread in self._threads:
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join(self._timeout)

    def forget(self) -> None:
        """Close a forked child's copies of the parent's sockets."""
        for channel in self._channels:
            channel.close()

    def _follow(self, watch: Watch) -> None:
        """Ask one witness until the end; runs in a thread for this witness."""
        while not self._stopping:
            try:
                self._follow_while_connected(watch)
            except BaseException as error:
                # The application's credential provider may exit, too.
                self._note_failure(watch, error)
                self._pause()

    def _follow_while_connected(self, watch: Watch) -> None:
        channel = open_blocking(self._connection(watch), self._timeout, math.inf)
        try:
            with self._news:
                self._channels.add(channel)
            while not self._stopping:
                channel.run(self._question(watch))
                self._pause()
        finally:
            with self._news:
                self._channels.discard(channel)
            channel.close()

    def _pause(self) -> None:
        with self._news:
            self._news.wait_for(lambda: self._stopping, _ASK_EVERY)


class AioWatches(_AnyWatches):
    """Those of the driver for asyncio: a task for each witness.

    Attributes:
        tasks: The tasks; they end when cancelled.
    """

    def __init__(self, *settings: Any) -> None:
        """Make the watches; settings as for `Watches`."""
        super().__init__(*settings)
        self._news: Final = asyncio.Event()
        self._guard, self._notify = nullcontext(), self._news.set
        self.tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to ask."""
        loop = asyncio.get_running_loop()
        self.tasks = [loop.create_task(self._follow(watch), name=_name(watch)) for watch in self._all]

    async def locate(self, node: Node) -> None:
        """Return as soon as the place of a node's server is known; raises as in `Watches`."""
        if (locator := node.locator) is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._timeout / 2):
                    while not _is_known(locator):
                        self._news.clear()
                        await self._news.wait()
            _take_location(node, locator)

    async def _follow(self, watch: Watch) -> None:
        while True:
            try:
                await self._follow_while_connected(watch)
            except Exception as error:
                self._note_failure(watch, error)
            await asyncio.sleep(_ASK_EVERY)

    async def _follow_while_connected(self, watch: Watch) -> None:
        async with asyncio.timeout(self._timeout):
            channel = await open_connection(self._connection(watch))
        try:
            while True:
                async with asyncio.timeout(self._timeout):
                    await channel.run(self._question(watch))
                await asyncio.sleep(_ASK_EVERY)
        finally:
            channel.close()
