"""Wakers: end another thread's poll, from any thread, without blocking."""

from __future__ import annotations

import socket
from typing import Final

from redsync._core.interruptions import expected

__all__ = ["Waker"]


class Waker:
    """A pipe to oneself: readable after `wake` until `drain`.

    Attributes:
        fileno: The descriptor to poll for reading.
    """

    def __init__(self) -> None:
        self._near, self._far = socket.socketpair()
        self._near.setblocking(False)
        self._far.setblocking(False)
        self.fileno: Final = self._near.fileno()

    def wake(self) -> None:
        """Make it readable. Does nothing once it is closed: the thread to wake has ended."""
        with expected(OSError):  # A full pipe is already readable.
            self._far.send(b"\0")

    def drain(self) -> None:
        """Make it unreadable again."""
        with expected(BlockingIOError):
            while self._near.recv(4096):
                pass

    def close(self) -> None:
        """Free the descriptors."""
        self._near.close()
        self._far.close()
