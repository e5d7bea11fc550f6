"""Watches of the driver for threads: they ask the witnesses of a node where its server is, again and again.

Each witness has a thread, because one that is silent must not delay what the others say. They ask twice a second,
which costs them a few microseconds; the message about a failover could be lost. So a client follows a failover at
most half a second after a majority of them tells of it.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from redsync._core.interruptions import expected
from redsync._drivers.channels import Channel
from redsync._drivers.locators import Locator, Witness
from redsync._drivers.nodes import Node, describe_error, new_connection
from redsync.exceptions import ConfigurationError

__all__ = ["ASK_EVERY", "Follower", "Watches"]

ASK_EVERY: Final = 0.5
"""Seconds between two questions to a Sentinel."""


class Watches:
    """Follows where the servers of a client's nodes are."""

    def __init__(
        self, nodes: Sequence[Node], timeout: float, clock: Callable[[], float], on_moved: Callable[[Node], None]
    ) -> None:
        """Make them.

        Args:
            nodes: The client's nodes; those with an address of their own need no watch.
            timeout: For how many seconds a witness may be silent; `locate` waits for half of that.
            clock: The client's clock, in seconds.
            on_moved: Called with a node whose server is another one now.
        """
        self._of_node: Final = {
            node.index: _Watch(node, node.locator, timeout, clock, on_moved)
            for node in nodes
            if node.locator is not None
        }

    def start(self) -> None:
        """Begin to ask."""
        for watch in self._of_node.values():
            watch.start()

    def locate(self, node: Node) -> None:
        """Return as soon as it is known where a node's server is.

        Raises:
            ConnectionError: The witnesses did not say so in time.
            ConfigurationError: They never will.
        """
        if node.index in self._of_node:
            self._of_node[node.index].locate()

    def stop(self) -> None:
        """End all questions, and wait a moment for that."""
        for watch in self._of_node.values():
            watch.stop()
        for watch in self._of_node.values():
            watch.join()

    def forget(self) -> None:
        """Give up the copies of the parent's sockets in the child of a fork."""
        for watch in self._of_node.values():
            watch.forget()


class Follower:
    """What both drivers do alike: follows one node."""

    def __init__(
        self,
        node: Node,
        locator: Locator,
        timeout: float,
        clock: Callable[[], float],
        on_moved: Callable[[Node], None],
    ) -> None:
        self._node: Final = node
        self._locator: Final = locator
        self._timeout: Final = timeout
        self._clock: Final = clock
        self._on_moved: Final = on_moved

    def _ask_now(self, witness: int) -> tuple[bytes, ...]:
        """Return what to ask a witness now."""
        return self._locator.ask(witness, self._clock())

    def _hear(self, witness: int, replies: Sequence[Any]) -> bool:
        """Take what a witness said; return whether the node is to be connected anew."""
        before = self._locator.present
        self._locator.note(witness, replies)
        return self._locator.present not in (None, before) or self._node.moved() is not None

    def _take_place(self) -> None:
        """Let the node be connected where its server is.

        Raises:
            ConnectionError: The witnesses did not say so in time.
            ConfigurationError: They never will.
        """
        if self._locator.conflict is not None:
            raise ConfigurationError(self._locator.conflict)
        if self._locator.present is None:
            raise ConnectionError(self._locator.excuse)
        self._node.location = self._locator.present


class _Watch(Follower):
    """A thread for each witness."""

    def __init__(self, node: Node, locator: Locator, *settings: Any) -> None:
        super().__init__(node, locator, *settings)
        # Guards the locator and the attributes below.
        self._news: Final = threading.Condition()
        self._stopping = False
        self._channels: Final[dict[int, Channel]] = {}
        self._threads: Final = [
            threading.Thread(target=self._follow, args=item, name=f"redsync-watch-{item[1].address}", daemon=True)
            for item in enumerate(locator.witnesses)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def locate(self) -> None:
        locator = self._locator
        with self._news:
            self._news.wait_for(
                lambda: locator.present is not None or locator.conflict is not None or self._stopping, self._timeout / 2
            )
            self._take_place()

    def stop(self) -> None:
        with self._news:
            self._stopping = True
            self._news.notify_all()
            for channel in self._channels.values():
                if channel.sock is not None:
                    with expected(OSError):
                        channel.sock.shutdown(2)

    def join(self) -> None:
        for thread in self._threads:
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join(self._timeout)

    def forget(self) -> None:
        for channel in self._channels.values():
            channel.close()

    def _follow(self, index: int, witness: Witness) -> None:
        """Ask one witness until the end; the body of a thread of its own."""
        while not self._stopping:
            try:
                self._ask(index, witness)
            except Exception as error:
                # Whatever listens at that address may answer anything.
                with self._news:
                    self._locator.note_failure(index, describe_error(error))
                    self._news.notify_all()
                    self._pause()

    def _ask(self, index: int, witness: Witness) -> None:
        channel = _open(witness.pool, self._timeout)
        try:
            with self._news:
                self._channels[index] = channel
            while not self._stopping:
                self._note(index, channel.ask(*self._ask_now(index)))
        finally:
            with self._news:
                self._channels.pop(index, None)
            channel.close()

    def _note(self, index: int, replies: Sequence[Any]) -> None:
        with self._news:
            moved = self._hear(index, replies)
            self._news.notify_all()
        if moved:
            self._on_moved(self._node)
        with self._news:
            self._pause()

    def _pause(self) -> None:
        self._news.wait_for(lambda: self._stopping, ASK_EVERY)


def _open(pool: Any, timeout: float) -> Channel:
    connection = new_connection(pool, timeout, protocol=2)
    try:
        connection.connect()
    except BaseException:
        connection.disconnect()
        raise
    return Channel(connection, timeout, math.inf)
