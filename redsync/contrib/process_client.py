"""One client for each process, made from settings when it is first used: so after the fork of a server with workers."""

from __future__ import annotations

import atexit
import inspect
import os
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Final

from redsync import Client, ConfigurationError

__all__ = ["ProcessClient", "make_client"]


def make_client(setting: str, given: Any, case: Callable[[str], str]) -> Client:
    """Return a new client as a setting says; what it leaves out comes from where `Client.from_env` has it.

    Args:
        setting: The setting's name, for messages.
        given: Its value: a mapping of `URLS` and the options of `Client`.
        case: Makes of `urls` or an option's name the key, such as `str.upper`.

    Raises:
        ConfigurationError: The setting is no mapping, has an unknown key, or a value that a client refuses.
    """
    if not isinstance(given, Mapping):
        raise ConfigurationError(f"{setting} is a dictionary such as {{{case('urls')!r}: [...]}}, not {given!r}")
    options = {case(name): name for name in ("urls", *inspect.signature(Client).parameters) if name != "nodes"}
    if unknown := [key for key in given if key not in options]:
        raise ConfigurationError(f"{setting}[{unknown[0]!r}] is no setting; there are {', '.join(sorted(options))}")
    values = {options[key]: value for key, value in given.items()}
    urls = values.pop("urls", ())
    try:
        return Client.from_env([urls] if isinstance(urls, str) else urls, **values)
    except (ConfigurationError, TypeError, ValueError) as error:
        raise ConfigurationError(f"{setting}: {error}") from error


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
            ConfigurationError: The settings make no client.
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


def close_all() -> None:
    """Close the clients of this process, for one that ends without the finalizers of Python."""
    for client in list(_all):
        client.close()


def _after_fork_in_child() -> None:
    for client in list(_all):
        client._renew_lock()


atexit.register(close_all)
os.register_at_fork(after_in_child=_after_fork_in_child)
