"""Watches of the driver for threads: they poll the witnesses of a node for its server.

Each witness has a thread, because a silent one must not delay the others. A message about a failover could be lost, so
a watch polls, twice a second, which costs a witness a few microseconds. So a client follows a failover at most half a
second after a majority of the witnesses reports it.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from redsync._core.interruptions import expected
from redsync._drivers.channels import Channel
from redsync._drivers.nodes import Node, reason_of
from redsync._drivers.redis_py import new_connection, take_socket
from redsync.exceptions import ConfigurationError

if TYPE_CHECKING:
    from redsync._drivers.locators import Locator, Witness

__all__ = ["ASK_EVERY", "Follower", "Watches"]

ASK_EVERY: Final = 0.5
"""Seconds between two questions to a witness."""


class Watches:
    """Follows the servers of a client's nodes."""

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
        """Return as soon as the place of a node's server is known.

        Raises:
            ConnectionError: The witnesses did not report it in time.
            ConfigurationError: They never will.
        """
        if node.index in self._of_node:
            self._of_node[node.index].locate()

    def stop(self) -> None:
        """End all questions, and wait briefly for their end."""
        for watch in self._of_node.values():
            watch.stop()
        for watch in self._of_node.values():
            watch.join()

    def forget(self) -> None:
        """Close a forked child's copies of the parent's sockets."""
        for watch in self._of_node.values():
            watch.forget()


class Follower:
    """Follows one node; the common base of both drivers' watches."""

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
        """Return the questions for a witness, asked now."""
        return self._locator.ask(witness, self._clock())

    def _hear(self, witness: int, replies: Sequence[Any]) -> bool:
        """Record a witness's replies; return True if the node must be connected again."""
        before = self._locator.present
        self._locator.note(witness, replies)
        return self._locator.present not in (None, before) or self._node.moved() is not None

    def _note_failure(self, witness: int, error: BaseException) -> None:
        """Record why a witness can't be asked."""
        locator = self._locator
        before = locator.words[witness]
        locator.note_failure(witness, reason_of(error, locator.witnesses[witness].address, before))

    def _take_place(self) -> None:
        """Set the node's location to the place of its server.

        Raises:
            ConnectionError: The witnesses did not report it in time.
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
        """Ask one witness until the end; runs in a thread for this witness."""
        while not self._stopping:
            try:
                self._ask(index, witness)
            except BaseException as error:
                # The application's credential provider may exit, too.
                with self._news:
                    self._note_failure(index, error)
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
    connection = new_connection(pool, timeout)
    try:
        connection.connect()
    except BaseException:
        connection.disconnect()
        raise
    return Channel(take_socket(connection), timeout, math.inf)
