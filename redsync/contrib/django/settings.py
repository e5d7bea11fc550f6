"""Where Django's settings become a client: `REDSYNC = {"URLS": [...], "LEASE": 30.0}`, or the environment."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.core.signals import setting_changed

from redsync import Client, ConfigurationError
from redsync.contrib.process_client import ProcessClient

__all__ = ["CLIENT", "make_client"]


def make_client() -> Client:
    """Return a new client as the settings say; what they leave out comes from where `Client.from_env` has it.

    Raises:
        ConfigurationError: A setting that is none, with its name; or one that a client refuses.
    """
    given = getattr(settings, "REDSYNC", {})
    if not isinstance(given, Mapping):
        raise ConfigurationError(f"REDSYNC is a dictionary such as {{'URLS': [...]}}, not {given!r}")
    known = {"URLS", *(name.upper() for name in inspect.signature(Client).parameters if name != "nodes")}
    if unknown := sorted(map(str, given.keys() - known)):
        raise ConfigurationError(f"REDSYNC[{unknown[0]!r}] is no setting; there are {', '.join(sorted(known))}")
    options = {name.lower(): value for name, value in given.items() if name != "URLS"}
    urls = given.get("URLS", ())
    try:
        return Client.from_env([urls] if isinstance(urls, str) else urls, **options)
    except (ConfigurationError, TypeError, ValueError) as error:
        raise ConfigurationError(f"REDSYNC: {error}") from error


CLIENT = ProcessClient(make_client)
"""The client of this process."""


def _forget_client(*, setting: str, **_: Any) -> None:
    if setting == "REDSYNC":  # a test overrides it
        CLIENT.close()


setting_changed.connect(_forget_client)
