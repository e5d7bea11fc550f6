"""Django: a client from the settings.

```python
INSTALLED_APPS = [..., "redsync.contrib.django"]
REDSYNC = {"URLS": ["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"]}
```

1. `get_client` returns the client of the process, made at its first use, so after a server has forked its workers.
2. A system check reports a bad setting. `manage.py check`, `runserver` and most commands run it, but no WSGI or ASGI
   server does: there, the first `get_client` raises the error.
"""

from __future__ import annotations

from typing import Any, Final

try:
    from django.conf import settings
    from django.core import checks
    from django.core.signals import setting_changed
except ImportError as error:  # pragma: no cover
    raise ImportError("redsync.contrib.django needs `pip install redsync-toolkit[django]`") from error

from redsync import Client, ConfigurationError
from redsync.contrib.shared import ProcessClient

__all__ = ["get_client"]

_CLIENT: Final = ProcessClient("REDSYNC", lambda: getattr(settings, "REDSYNC", {}))


def get_client() -> Client:
    """Return the client of this process, made from the settings at its first use.

    It is closed when the process ends. An `async def` view needs an `AsyncClient` instead.

    Raises:
        ConfigurationError: The setting `REDSYNC` and the environment have no URLs, or a bad value.
    """
    return _CLIENT.get()


@checks.register  # type: ignore[untyped-decorator]  # Django has no types
def _check_settings(**_: Any) -> list[checks.CheckMessage]:
    try:
        _CLIENT.check()
    except ConfigurationError as error:
        return [checks.Error(str(error), hint="See REDSYNC in settings.py, or REDSYNC_URLS.", id="redsync.E001")]
    return []


def _forget_client(*, setting: str, **_: Any) -> None:
    if setting == "REDSYNC":  # a test overrides it
        _CLIENT.close()


setting_changed.connect(_forget_client)
