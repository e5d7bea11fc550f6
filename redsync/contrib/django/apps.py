"""The Django application: it registers a system check of the settings."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.core import checks

from redsync import ConfigurationError
from redsync.contrib.django import CLIENT

__all__ = ["RedsyncConfig"]


class RedsyncConfig(AppConfig):  # type: ignore[misc]  # Django has no types
    """Registers the system check."""

    name = "redsync.contrib.django"
    label = "redsync"
    verbose_name = "redsync"

    def ready(self) -> None:
        """Register the check; Django calls this once."""
        checks.register(check_settings)


def check_settings(**_: Any) -> list[checks.CheckMessage]:
    """Return an error for bad settings. The check waits for no node, as nodes may be down."""
    try:
        CLIENT.check()
    except ConfigurationError as error:
        return [checks.Error(str(error), hint="See REDSYNC in settings.py, or REDSYNC_URLS.", id="redsync.E001")]
    return []
