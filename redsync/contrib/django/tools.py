"""What a project uses: the client, the decorator of commands, and the guard of the cache."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeAlias, TypeVar

from django.core.cache import caches
from django.core.management.base import BaseCommand, CommandError

from redsync import AcquireTimeout, Client, LeaseLostError, NotOwnedError, QuorumError
from redsync.contrib.django.settings import CLIENT
from redsync.contrib.names import shortened

__all__ = ["get_client", "get_or_compute", "single_run"]

T = TypeVar("T")
_Handle: TypeAlias = Callable[..., str | None]

NO_QUORUM: Final = 69
"""The exit status when too few nodes answer, as that of `redsync lock`."""

LOST: Final = 124
"""The exit status when the lock was lost, as that of `redsync lock`."""

_MISSING: Final = object()


def get_client() -> Client:
    """Return the client of this process, made from the settings when it is first used.

    It is closed when the process ends. An `async def` view needs an `AsyncClient` of its own.

    Raises:
        ConfigurationError: The setting `REDSYNC` makes no client, and neither does the environment.
    """
    return CLIENT.get()


def single_run(
    name: str | None = None, *, min_hold: float = 0.0, busy_status: int = 0, **options: Any
) -> Callable[[_Handle], _Handle]:
    """Return a decorator for a command's `handle`: of all machines that start it at once, one runs it.

    The others say so on their standard error, and end. The exit status is 69 when too few nodes answer, and 124 when
    the lock was lost. While the command runs, `self.hold` is the hold: call `self.hold.check()` before what must not
    happen twice. The lock is released afterwards, also after an error.

    Args:
        name: The lock's name; None: `command:` and the name of the command's module.
        min_hold: For how many seconds the lock is kept, however short the work is. Clocks differ: without it a machine
            that is a little late finds the lock free again.
        busy_status: The exit status of the others.
        **options: Options of `Client.get_lock`.

    Raises:
        ValueError: `min_hold` is negative, or `busy_status` is no exit status.
    """
    if not min_hold >= 0:
        raise ValueError(f"min_hold is a number of seconds from 0 on, not {min_hold!r}")
    if busy_status not in range(256):
        raise ValueError(f"busy_status is an exit status from 0 to 255, not {busy_status!r}")

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
                    raise  # That of another lock is the command's own trouble.
                _explain(command, error, busy_status)
                return None

        return run

    return decorate


def _explain(command: BaseCommand, error: AcquireTimeout | QuorumError | LeaseLostError, busy_status: int) -> None:
    if isinstance(error, AcquireTimeout):
        text = f"not run: another machine is at it, and holds {error.name!r}"
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
    """Return an entry of the cache; of all processes that miss it one computes it, and the others wait for that.

    A cache must not fail because of its lock: where too few nodes answer, or it takes somebody longer than `patience`,
    this one computes, too.

    Args:
        key: The key.
        compute: Returns the value.
        timeout: After how many seconds the entry expires; None: never.
        cache: The alias of the cache.
        version: The version of the key.
        patience: How many seconds to wait for somebody else's value.
    """
    store = caches[cache]
    found = store.get(key, _MISSING, version=version)
    if found is not _MISSING:
        return found  # type: ignore[no-any-return]
    mutex = get_client().get_mutex(f"cache:{cache}:{shortened(store.make_key(key, version=version))}")
    try:
        if not mutex.acquire(False):  # An error comes at once here, that of a call that waits only in the end.
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
        with suppress(NotOwnedError):  # This one went ahead without it, or it was lost.
            mutex.release()
