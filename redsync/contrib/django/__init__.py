"""Django: a client from the settings, management commands that run once, and cache entries that are computed once.

```python
INSTALLED_APPS = [..., "redsync.contrib.django"]
REDSYNC = {"URLS": ["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"]}
```

1. `get_client` returns the client of the process, created at its first use, so after a server has forked its workers.
2. `single_run` is for commands that cron starts on several machines.
3. `get_or_compute` lets only one process compute a cache entry.
4. A system check reports a bad setting. `manage.py check`, `runserver` and most commands run it, but no WSGI or ASGI
   server does: there, the first `get_client` raises the error.
"""

from __future__ import annotations

try:
    import django  # noqa: F401
except ImportError as error:  # pragma: no cover
    raise ImportError("redsync.contrib.django needs `pip install redsync-toolkit[django]`") from error

from redsync.contrib.django.tools import get_client, get_or_compute, single_run

__all__ = ["get_client", "get_or_compute", "single_run"]
