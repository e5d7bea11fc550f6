"""One client for each process, created from settings at its first use, so after a server has forked its workers."""

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
    """Return a new client configured by a setting, with the defaults of `Client.from_env`.

    Args:
        setting: The setting's name, for messages.
        given: Its value: a mapping of `URLS` and the options of `Client`.
        case: A function that turns `urls` or an option's name into a key, such as `str.upper`.

    Raises:
        ConfigurationError: The setting is not a mapping, or has an unknown key or a bad value.
    """
    if not isinstance(given, Mapping):
        # Not its value, which may contain a password.
        what = f"a dictionary such as {{{case('urls')!r}: [...]}}, not a value of type {type(given).__name__}"
        raise ConfigurationError(f"{setting} must be {what}")
    options = {case(name): name for name in ("urls", *inspect.signature(Client).parameters) if name != "nodes"}
    if unknown := [key for key in given if key not in options]:
        known = ", ".join(sorted(options))
        raise ConfigurationError(f"{setting}[{unknown[0]!r}] is not a setting; the settings are {known}")
    values = {options[key]: value for key, value in given.items()}
    urls = values.pop("urls", ())
    try:
        return Client.from_env([urls] if isinstance(urls, str) else urls, **values)
    except (ConfigurationError, TypeError, ValueError) as error:
        raise ConfigurationError(f"{setting}: {error}") from error


class ProcessClient:
    """Creates the client of a process at its first use, and closes it when the process ends."""

    def __init__(self, make: Callable[[], Client]) -> None:
        """Store `make`, which returns a new client; the first `get` calls it."""
        self._make: Final = make
        self._client: Client | None = None
        self._renew_lock()
        _all[id(self)] = self

    def _renew_lock(self) -> None:
        self._lock = threading.Lock()

    def get(self) -> Client:
        """Return the client; after a fork, the child uses its parent's object as a new client.

        Raises:
            ConfigurationError: The settings have no URLs, or a bad value.
        """
        with self._lock:
            if self._client is None:
                self._client = self._make()
            return self._client

    def close(self) -> None:
        """Close the client, which releases its holds; the next use creates a new one."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()


_all: weakref.WeakValueDictionary[int, ProcessClient] = weakref.WeakValueDictionary()


def _present() -> list[ProcessClient]:
    # A list, because a client that is made meanwhile ends the iteration of a weak collection with an error.
    return [client for reference in _all.valuerefs() if (client := reference()) is not None]


def close_all() -> None:
    """Close the clients of this process, if it ends without running Python's finalizers."""
    for client in _present():
        client.close()


def _after_fork_in_child() -> None:
    for client in _present():
        client._renew_lock()


atexit.register(close_all)
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_after_fork_in_child)
