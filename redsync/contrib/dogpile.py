"""dogpile.cache: of all processes that miss an entry one computes it; the others wait for it, or use the old one.

```python
from dogpile.cache import make_region
from redsync.contrib.dogpile import RedsyncProxy

cache = make_region().configure("dogpile.cache.redis", arguments={"url": url}, wrap=[RedsyncProxy(client)])
```

A cache must not fail because of its lock. Where a mutex can't be had, the entry is computed without it: that costs
time, and is what happened before.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Final

try:
    from dogpile.cache.api import CacheMutex
    from dogpile.cache.proxy import ProxyBackend
except ImportError as error:  # pragma: no cover
    raise ImportError("redsync.contrib.dogpile needs `pip install redsync-toolkit[dogpile]`") from error

from redsync import Client, Mutex, NotOwnedError, QuorumError
from redsync.contrib.names import LONGEST, shortened

__all__ = ["RedsyncProxy"]


class RedsyncProxy(ProxyBackend):
    """Gives any backend of dogpile.cache mutexes that all processes share; one for each region.

    A mutex belongs to its object, not to a thread: dogpile.cache hands it to whichever thread releases it.

    Args:
        client: The client whose nodes keep the mutexes.
        patience: How many seconds a reader without any old value waits for somebody else's, before it computes its own.
        max_hold: After how many seconds another one may try, although the process that computes is alive.
        prefix: What the names of the mutexes begin with; the entry's key follows.

    Raises:
        ValueError: `patience` is negative, or a client refuses `max_hold`.
    """

    def __init__(
        self, client: Client, *, patience: float = 10.0, max_hold: float = 60.0, prefix: str = "dogpile:"
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # of dogpile.cache
        if not patience >= 0:
            raise ValueError(f"patience is a number of seconds from 0 on, not {patience!r}")
        client.get_mutex(f"{prefix}{'x' * LONGEST}", max_hold=max_hold)  # refuses a bad limit, or prefix, now
        self._client: Final = client
        self._patience: Final = patience
        self._max_hold: Final = max_hold
        self._prefix: Final = prefix

    def get_mutex(self, key: str) -> CacheMutex:
        """Return the mutex of an entry; called by dogpile.cache."""
        mutex = self._client.get_mutex(f"{self._prefix}{shortened(key)}", max_hold=self._max_hold)
        return _CreationMutex(mutex, self._patience)


class _CreationMutex(CacheMutex):
    """Lets one at a time compute an entry, as long as that can be had.

    dogpile.cache does not look at what a waiting `acquire` returns: it computes, and calls `release`. So those who went
    ahead without the mutex are counted, and as many releases give nothing back.
    """

    def __init__(self, mutex: Mutex, patience: float) -> None:
        self._mutex: Final = mutex
        self._patience: Final = patience
        self._guard: Final = threading.Lock()
        self._without = 0

    def acquire(self, wait: bool = True) -> bool:
        try:
            if self._mutex.acquire(False):  # An error comes at once here, that of a call that waits only in the end.
                return True
            if not wait:
                return False  # There is an old value.
            if self._mutex.acquire(timeout=self._patience):
                return True
        except QuorumError:
            pass
        with self._guard:
            self._without += 1
        return True

    def release(self) -> None:
        with self._guard:
            if self._without:
                self._without -= 1
                return
        with suppress(NotOwnedError):  # The hold was lost: the entry may have been computed twice.
            self._mutex.release()

    def locked(self) -> bool:
        return self._mutex.locked()
