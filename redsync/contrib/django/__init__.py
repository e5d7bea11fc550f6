"""Django: a client from the settings, management commands that run once, and a guard for the cache.

```python
INSTALLED_APPS = [..., "redsync.contrib.django"]
REDSYNC = {"URLS": ["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"]}
```

1. `get_client` returns the client of the process, made at its first use: after the fork of a server's workers.
2. `single_run` is for commands that cron starts on several machines.
3. `get_or_compute` lets one process of all compute an entry of the cache.
4. The application's system check tells at the start of a project which setting is wrong.
"""

from __future__ import annotations

try:
    import django  # noqa: F401
except ImportError as error:  # pragma: no cover
    raise ImportError("redsync.contrib.django needs `pip install redsync-toolkit[django]`") from error

from redsync.contrib.django.tools import get_client, get_or_compute, single_run

__all__ = ["get_client", "get_or_compute", "single_run"]
