"""The client from Django's settings, `REDSYNC = {"URLS": [...], "LEASE": 30.0}`, or from the environment."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.signals import setting_changed

from redsync import Client
from redsync.contrib import process_client

__all__ = ["CLIENT", "make_client"]


def make_client() -> Client:
    """Return a new client from the settings.

    Raises:
        ConfigurationError: A setting is unknown or bad; the message names it.
    """
    return process_client.make_client("REDSYNC", getattr(settings, "REDSYNC", {}), str.upper)


CLIENT = process_client.ProcessClient(make_client)
"""The client of this process."""


def _forget_client(*, setting: str, **_: Any) -> None:
    if setting == "REDSYNC":  # a test overrides it
        CLIENT.close()


setting_changed.connect(_forget_client)
