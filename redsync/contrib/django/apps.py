"""The Django application's label; Django looks for it in a submodule of this name only."""

from __future__ import annotations

from django.apps import AppConfig

__all__ = ["RedsyncConfig"]


class RedsyncConfig(AppConfig):  # type: ignore[misc]  # Django has no types
    """Names the application "redsync": by default it would be "django", as many others."""

    name = "redsync.contrib.django"
    label = "redsync"
