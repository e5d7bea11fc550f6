"""The spin lock: retries with growing pauses, and keeps nothing on the nodes while it waits.

```python
with client.get_spin_lock("cache:42", timeout=0.5):
    rebuild_cache()
```

`redsync._protocols.queue_policies` makes the decisions; this module has only the interface.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from redsync._core.session import AnyHost, RunnerT_co
from redsync._core.timing import retry_delay
from redsync._facades.claimable import HoldT
from redsync._facades.exclusive import Exclusive
from redsync._facades.lock import AsyncLock, Lock
from redsync._protocols.claims import AcquireRequest
from redsync._protocols.queue_policies import NoQueue

__all__ = ["AsyncSpinLock", "SpinLock"]


def _pause(backoff: Callable[[int], float] | None, name: str | bytes, tries: int, random: float) -> float:
    """Return how many seconds to sleep after `tries` tries."""
    if backoff is None:
        return retry_delay(tries, random)
    pause = backoff(tries)
    if not 0 <= pause < math.inf:
        raise ValueError(f"the backoff of lock {name!r} must be a number of seconds, at least 0, not {pause!r}")
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
            raise TypeError(f"backoff must be a function from the number of tries to seconds, not {backoff!r}")
        self._backoff = backoff
        super().__init__(host, name, **options)

    def _request(self, timeout: float | None, lease: float | None, count: int) -> AcquireRequest:
        request = super()._request(timeout, lease, count)
        # Not bound to the lock: a request must not keep a lock object alive that the program has dropped.
        request.queue = partial(NoQueue, partial(_pause, self._backoff, self._name))
        return request

    def _options(self) -> dict[str, Any]:
        return {**super()._options(), "backoff": self._backoff}


class SpinLock(_Spinning[Any, Any], Lock):
    """A reentrant lock whose waiters poll, owned by the thread that acquired it.

    The guarantees are those of `Lock`. Only the waiting differs: no queue and no wake-ups, only random pauses, up to
    1 ms at first, doubled after each try, up to 0.1 s. It suits locks that are held briefly and rarely contended, and
    nodes whose ACL forbids SUBSCRIBE. Under contention waiters get it late, the last holder often gets it again, and
    each try costs a request per node. It and a `Lock` of the same name exclude each other.

    Made by `Client.get_spin_lock`.
    """


class AsyncSpinLock(_Spinning[Any, Any], AsyncLock):
    """A reentrant lock whose waiters poll, owned by the task that acquired it.

    Like `SpinLock`, with tasks instead of threads. Made by `AsyncClient.get_spin_lock`.
    """
