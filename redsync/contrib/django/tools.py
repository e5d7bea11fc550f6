"""The client, the decorator for commands, and the function for cache entries.

The client comes from Django's settings, `REDSYNC = {"URLS": [...], "LEASE": 30.0}`, or from the environment.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeAlias, TypeVar

from django.conf import settings
from django.core.cache import caches
from django.core.management.base import BaseCommand, CommandError
from django.core.signals import setting_changed

from redsync import AcquireTimeout, Client, LeaseLostError, NotOwnedError, QuorumError
from redsync.contrib import shared
from redsync.contrib.shared import shortened

__all__ = ["CLIENT", "get_client", "get_or_compute", "make_client", "single_run"]

T = TypeVar("T")
_Handle: TypeAlias = Callable[..., str | None]

NO_QUORUM: Final = 69
"""The exit status if too few nodes answer, as for `redsync lock`."""

LOST: Final = 124
"""The exit status if the lock was lost, as for `redsync lock`."""

_MISSING: Final = object()


def get_client() -> Client:
    """Return the client of this process, created from the settings at its first use.

    It is closed when the process ends. An `async def` view needs an `AsyncClient` instead.

    Raises:
        ConfigurationError: The setting `REDSYNC` and the environment have no URLs, or a bad value.
    """
    return CLIENT.get()


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
            label = name or f"command:{type(command).__module__.rpartition('.')[2]}"
            try:
                with get_client().get_lock(label, timeout=0.0, **options) as command.hold:
                    begun = time.monotonic()
                    try:
                        return handle(command, *args, **given)
                    finally:
                        if not isinstance(sys.exception(), KeyboardInterrupt):
                            time.sleep(max(begun + min_hold - time.monotonic(), 0.0))
            except (AcquireTimeout, QuorumError, LeaseLostError) as error:
                if error.name != label:
                    raise  # Another lock's error concerns the command.
                _explain(command, error, busy_status)
                return None

        return run

    return decorate


def _explain(command: BaseCommand, error: AcquireTimeout | QuorumError | LeaseLostError, busy_status: int) -> None:
    if isinstance(error, AcquireTimeout):
        text = f"not run: another machine holds {error.name!r}"
        if not busy_status:
            command.stderr.write(text)
            return
        raise CommandError(text, returncode=busy_status) from error
    if isinstance(error, QuorumError):
        raise CommandError(f"not run: {error}", returncode=NO_QUORUM) from error
    raise CommandError(str(error), returncode=LOST) from error


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
    try:
        if not mutex.acquire(False):  # raises an error at once; a waiting call does so only at its timeout
            mutex.acquire(timeout=patience)
    except QuorumError:
        pass
    try:
        found = store.get(key, _MISSING, version=version)
        if found is _MISSING:
            found = compute()
            store.set(key, found, timeout, version=version)
        return found  # type: ignore[no-any-return]
    finally:
        with suppress(NotOwnedError):  # this process continued without the mutex, or lost it
            mutex.release()


def make_client() -> Client:
    """Return a new client from the settings.

    Raises:
        ConfigurationError: A setting is unknown or bad; the message names it.
    """
    return shared.make_client("REDSYNC", getattr(settings, "REDSYNC", {}), str.upper)


CLIENT = shared.ProcessClient(make_client)
"""The client of this process."""


def _forget_client(*, setting: str, **_: Any) -> None:
    if setting == "REDSYNC":  # a test overrides it
        CLIENT.close()


setting_changed.connect(_forget_client)
