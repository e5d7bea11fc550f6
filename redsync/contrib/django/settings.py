"""Where Django's settings become a client: `REDSYNC = {"URLS": [...], "LEASE": 30.0}`, or the environment."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.signals import setting_changed

from redsync import Client
from redsync.contrib import process_client

__all__ = ["CLIENT", "make_client"]


def make_client() -> Client:
    """Return a new client as the settings say.

    Raises:
        ConfigurationError: A setting that is none, with its name; or one that a client refuses.
    """
    return process_client.make_client("REDSYNC", getattr(settings, "REDSYNC", {}), str.upper)


CLIENT = process_client.ProcessClient(make_client)
"""The client of this process."""


def _forget_client(*, setting: str, **_: Any) -> None:
    if setting == "REDSYNC":  # a test overrides it
        CLIENT.close()


setting_changed.connect(_forget_client)
