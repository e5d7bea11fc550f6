"""The fair lock: first come, first served over independent nodes.

```python
with client.get_fair_lock("printer"):
    print_report()
```

`redsync._protocols.queue_policies` makes the decisions; this module has only the interface.
"""

from __future__ import annotations

from redsync._facades.lock import AsyncLock, Lock
from redsync._protocols.lock import FAIR_LOCK

__all__ = ["AsyncFairLock", "FairLock"]


class FairLock(Lock):
    """A reentrant lock that serves waiters in order of arrival, owned by the thread that acquired it.

    The guarantees are those of `Lock`, and one more: a waiter that finished queueing before another asked is served
    before it. This relies on no clock. It ends for a waiter if fewer than a quorum of nodes still have its place, or if
    it was silent for 3 s (a stopped process). No owner barges: nodes refuse a free lock to all but the first in the
    queue, so `acquire(False)` may return False while no owner holds it.

    Use one kind of lock per name: a `Lock` of the same name excludes this one, but ignores its queue.

    Algorithm: Lamport's bakery with a quorum instead of shared memory. Made by `Client.get_fair_lock`.
    """

    _KIND = FAIR_LOCK


class AsyncFairLock(AsyncLock):
    """A reentrant lock that serves waiters in order of arrival, owned by the task that acquired it.

    Like `FairLock`, with tasks instead of threads. Made by `AsyncClient.get_fair_lock`.
    """

    _KIND = FAIR_LOCK
