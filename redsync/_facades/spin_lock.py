"""The spin lock: tries again and again, with growing pauses, and leaves nothing on the nodes while it waits.

```python
with client.get_spin_lock("cache:42", timeout=0.5):
    rebuild_cache()
```

The decisions are in `redsync._protocols.places`; this module has only what callers touch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from redsync._core.runner import AnyHost, RunnerT_co
from redsync._core.timing import retry_delay
from redsync._facades.claimable import HoldT
from redsync._facades.exclusive import Exclusive
from redsync._facades.lock import AsyncLock, Lock
from redsync._protocols.acquire_requests import AcquireRequest
from redsync._protocols.places import Nowhere

__all__ = ["AsyncSpinLock", "SpinLock"]


def _pause(backoff: Callable[[int], float] | None, name: str | bytes, tries: int, random: float) -> float:
    """Return for how many seconds to sleep after `tries` tries."""
    if backoff is None:
        return retry_delay(tries, random)
    pause = backoff(tries)
    if not 0 <= pause < math.inf:
        raise ValueError(f"the backoff of lock {name!r} is a number of seconds from 0 on, not {pause!r}")
    return pause


class _Spinning(Exclusive[RunnerT_co, HoldT]):
    def __init__(
        self,
        host: AnyHost[RunnerT_co],
        name: str | bytes,
        *,
        backoff: Callable[[int], float] | None = None,
        **options: Any,
    ) -> None:
        if backoff is not None and not callable(backoff):
            raise TypeError(f"backoff is a function from the number of tries to seconds, not {backoff!r}")
        self._backoff = backoff
        super().__init__(host, name, **options)

    def _request(self, timeout: float | None, lease: float | None, count: int) -> AcquireRequest:
        # Not bound to the lock: a request must not keep alive a lock object that the program has dropped.
        pause = partial(_pause, self._backoff, self._name)
        return super()._request(timeout, lease, count)._replace(queue=partial(Nowhere, pause))

    def _options(self) -> dict[str, Any]:
        return {**super()._options(), "backoff": self._backoff}


class SpinLock(_Spinning[Any, Any], Lock):
    """A reentrant lock that its waiters ask for again and again, owned by the thread that acquired it.

    The guarantees are those of `Lock`. Only the waiting differs: there is no queue and no wake-up, only random pauses,
    up to 1 ms at first, doubled after each try, up to 0.1 s. It suits locks that are held for a moment and seldom
    contended, and nodes whose ACL does not allow SUBSCRIBE. Under contention waiters get it late, the last holder often
    gets it again, and each try costs a request per node. It excludes, and is excluded by, the `Lock` of the same name.

    Made by `Client.get_spin_lock`.
    """


class AsyncSpinLock(_Spinning[Any, Any], AsyncLock):
    """A reentrant lock that its waiters ask for again and again, owned by the task that acquired it.

    As `SpinLock`, with tasks instead of threads. Made by `AsyncClient.get_spin_lock`.
    """
