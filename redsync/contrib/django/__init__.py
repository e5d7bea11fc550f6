"""Django: a client from the settings, management commands that run once, and cache entries that are computed once.

```python
INSTALLED_APPS = [..., "redsync.contrib.django"]
REDSYNC = {"URLS": ["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"]}
```

1. `get_client` returns the client of the process, made at its first use, so after a server has forked its workers.
2. `single_run` is for commands that cron starts on several machines.
3. `get_or_compute` lets only one process compute a cache entry.
4. A system check reports a bad setting. `manage.py check`, `runserver` and most commands run it, but no WSGI or ASGI
   server does: there, the first `get_client` raises the error.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeAlias, TypeVar

try:
    from django.conf import settings
    from django.core import checks
    from django.core.cache import caches
    from django.core.management.base import BaseCommand, CommandError
    from django.core.signals import setting_changed
except ImportError as error:  # pragma: no cover
    raise ImportError("redsync.contrib.django needs `pip install redsync-toolkit[django]`") from error

from redsync import AcquireTimeout, Client, ConfigurationError, NotOwnedError, QuorumError
from redsync.contrib.shared import LockError, ProcessClient, explained, shortened

__all__ = ["get_client", "get_or_compute", "single_run"]

T = TypeVar("T")
_Handle: TypeAlias = Callable[..., str | None]

NO_QUORUM: Final = 69
"""The exit status if too few nodes answer, as for `redsync lock`."""

LOST: Final = 124
"""The exit status if the lock was lost, as for `redsync lock`."""

_CLIENT: Final = ProcessClient("REDSYNC", lambda: getattr(settings, "REDSYNC", {}))
_MISSING: Final = object()


def get_client() -> Client:
    """Return the client of this process, made from the settings at its first use.

    It is closed when the process ends. An `async def` view needs an `AsyncClient` instead.

    Raises:
        ConfigurationError: The setting `REDSYNC` and the environment have no URLs, or a bad value.
    """
    return _CLIENT.get()


def single_run(
    name: str | None = None, *, min_hold: float = 0.0, busy_status: int = 0, **options: Any
) -> Callable[[_Handle], _Handle]:
    """Return a decorator for a command's `handle`: of the machines that start it at once, one runs it.

    The others say so on standard error, and exit. The exit status is 69 if too few nodes answer, and 124 if the lock
    was lost. While the command runs, `self.hold` is the hold: call `self.hold.check()` before an action that must not
    happen twice. The lock is released afterwards, even after an error.

    Args:
        name: The lock's name; None means `command:` and the name of the command's module.
        min_hold: The least number of seconds to hold the lock. Clocks differ: without it, a machine that is a little
            late finds the lock free again.
        busy_status: The exit status of the others.
        **options: Options of `Client.get_lock`.

    Raises:
        ValueError: `min_hold` is negative, or `busy_status` is not an exit status.
    """
    if not min_hold >= 0:
        raise ValueError(f"min_hold must be a number of seconds, 0 or more, not {min_hold!r}")
    if busy_status not in range(256):
        raise ValueError(f"busy_status must be an exit status from 0 to 255, not {busy_status!r}")

    def decorate(handle: _Handle) -> _Handle:
        @functools.wraps(handle)
        def run(command: BaseCommand, *args: Any, **given: Any) -> str | None:
            def explain(error: LockError) -> CommandError | None:
                if isinstance(error, QuorumError):
                    return CommandError(f"not run: {error}", returncode=NO_QUORUM)
                if not isinstance(error, AcquireTimeout):
                    return CommandError(str(error), returncode=LOST)
                text = f"not run: another machine holds {error.name!r}"
                if busy_status:
                    return CommandError(text, returncode=busy_status)
                command.stderr.write(text)
                return None

            label = name or f"command:{type(command).__module__.rpartition('.')[2]}"
            lock = get_client().get_lock(label, timeout=0.0, **options)
            with explained(label, explain), lock as command.hold:
                begun = time.monotonic()
                try:
                    return handle(command, *args, **given)
                finally:
                    if not isinstance(sys.exception(), KeyboardInterrupt):
                        time.sleep(max(begun + min_hold - time.monotonic(), 0.0))
            return None

        return run

    return decorate


def get_or_compute(
    key: str,
    compute: Callable[[], T],
    timeout: float | None = 300,
    *,
    cache: str = "default",
    version: int | None = None,
    patience: float = 10.0,
) -> T:
    """Return a cache entry; one of the processes that miss it computes it, and the others wait for the value.

    A cache must not fail because of its lock: if too few nodes answer, or the other process takes longer than
    `patience`, this process computes the entry too.

    Args:
        key: The key.
        compute: A function that returns the value.
        timeout: Seconds until the entry expires; None for never.
        cache: The alias of the cache.
        version: The version of the key.
        patience: Seconds to wait for another process's value.
    """
    store = caches[cache]
    found = store.get(key, _MISSING, version=version)
    if found is not _MISSING:
        return found  # type: ignore[no-any-return]
    mutex = get_client().get_mutex(f"cache:{cache}:{shortened(store.make_key(key, version=version))}")
    with suppress(QuorumError):
        # The first call raises an error at once; a waiting one does so only at its timeout.
        _ = mutex.acquire(False) or mutex.acquire(timeout=patience)
    try:
        found = store.get(key, _MISSING, version=version)
        if found is _MISSING:
            found = compute()
            store.set(key, found, timeout, version=version)
        return found  # type: ignore[no-any-return]
    finally:
        with suppress(NotOwnedError):  # this process continued without the mutex, or lost it
            mutex.release()


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
