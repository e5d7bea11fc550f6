"""dogpile.cache: one of the processes that miss an entry computes it; the others wait for it, or use the old value.

```python
from dogpile.cache import make_region
from redsync.contrib.dogpile import RedsyncProxy

cache = make_region().configure("dogpile.cache.redis", arguments={"url": url}, wrap=[RedsyncProxy(client)])
```

A cache must not fail because of its lock. A process that can't acquire a mutex computes the entry without it, as it
would without redsync.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final

try:
    from dogpile.cache.api import CacheMutex
    from dogpile.cache.proxy import ProxyBackend
except ImportError as error:  # pragma: no cover
    raise ImportError("redsync.contrib.dogpile needs `pip install redsync-toolkit[dogpile]`") from error

from redsync import Client, KeyTypeError, LeaseLostError, Mutex, NotOwnedError, QuorumError
from redsync.contrib.shared import LONGEST, check_client, check_seconds, shortened

__all__ = ["RedsyncProxy"]


class RedsyncProxy(ProxyBackend):
    """Gives a backend of dogpile.cache mutexes that all processes share; use one proxy for each region.

    A mutex belongs to its object, not to a thread: dogpile.cache may release it in another thread.

    Args:
        client: The client whose nodes keep the mutexes.
        patience: Seconds that a reader without an old value waits for another process before it computes the entry.
        max_hold: Seconds after which another process may compute the entry, even if the first one is alive. Readers in
            the first process that have no old value then compute it too.
        prefix: The prefix of the mutexes' names; the entry's key follows.

    Raises:
        ValueError: `patience` is not a number of seconds, or a client refuses `max_hold`.
        TypeError: `client` is not a `Client`.
    """

    def __init__(
        self, client: Client, *, patience: float = 10.0, max_hold: float = 60.0, prefix: str = "dogpile:"
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # of dogpile.cache
        check_client(client)
        check_seconds("patience", patience)
        client.get_mutex(f"{prefix}{'x' * LONGEST}", max_hold=max_hold)  # raises on a bad max_hold or prefix now
        self._client: Final = client
        self._patience: Final = patience
        self._max_hold: Final = max_hold
        self._prefix: Final = prefix

    def get_mutex(self, key: str) -> CacheMutex:
        """Return the mutex of an entry; dogpile.cache calls this."""
        mutex = self._client.get_mutex(f"{self._prefix}{shortened(key)}", max_hold=self._max_hold)
        return _CreationMutex(mutex, self._patience)


class _CreationMutex(CacheMutex):
    """Lets one process at a time compute an entry, as long as enough nodes answer.

    dogpile.cache ignores the result of a waiting `acquire`: it computes the entry and calls `release`. So we record the
    callers that continue without the mutex, and that many calls of `release` do nothing. Each record names its process:
    the child of a fork has none of these callers. No lock guards them: another thread might hold it during a fork.
    """

    def __init__(self, mutex: Mutex, patience: float) -> None:
        self._mutex: Final = mutex
        self._patience: Final = patience
        self._without: Final[list[int]] = []

    def acquire(self, wait: bool = True) -> bool:
        try:
            if self._mutex.acquire(False):  # raises an error at once; a waiting call does so only at its timeout
                return True
            if not wait:
                return False  # There is an old value.
            if self._mutex.acquire(timeout=self._patience):
                return True
        except (KeyTypeError, QuorumError):
            pass
        except LeaseLostError:
            # A thread of this process has computed for longer than `max_hold`, and still does.
            if not wait:
                return False
        self._without.append(os.getpid())
        return True

    def release(self) -> None:
        with suppress(ValueError):
            self._without.remove(os.getpid())
            return
        with suppress(NotOwnedError):  # The hold was lost: the entry may have been computed twice.
            self._mutex.release()

    def locked(self) -> bool:
        return self._mutex.locked()
