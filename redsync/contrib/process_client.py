"""One client for each process, made when it is first used: so after the fork of a server with workers."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable
from typing import Final

from redsync import Client

__all__ = ["ProcessClient"]


class ProcessClient:
    """Makes the client of a process at its first use, and closes it when the process ends."""

    def __init__(self, make: Callable[[], Client]) -> None:
        """Make nothing yet; `make` returns a new client."""
        self._make: Final = make
        self._client: Client | None = None
        self._renew_lock()
        _all.add(self)

    def _renew_lock(self) -> None:
        self._lock = threading.Lock()

    def get(self) -> Client:
        """Return the client; a child of a fork goes on with the object of its parent, as another client.

        Raises:
            ConfigurationError: The settings are no client's; so are `TypeError` and `ValueError`.
        """
        with self._lock:
            if self._client is None:
                self._client = self._make()
            return self._client

    def close(self) -> None:
        """Give back what is held, and make a new client at the next use."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()


_all: weakref.WeakSet[ProcessClient] = weakref.WeakSet()


def _close_all() -> None:
    for client in list(_all):
        client.close()


def _after_fork_in_child() -> None:
    for client in list(_all):
        client._renew_lock()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_after_fork_in_child)
