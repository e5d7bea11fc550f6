"""The fair lock: first come, first served over independent nodes.

```python
with client.get_fair_lock("printer"):
    print_report()
```

The decisions are in `redsync._protocols.places`; this module has only what callers touch.
"""

from __future__ import annotations

from typing import ClassVar

from redsync._facades.lock import AsyncLock, Lock
from redsync._protocols.fair_lock import FAIR_LOCK
from redsync._protocols.places import Place, Ticket

__all__ = ["AsyncFairLock", "FairLock"]


class FairLock(Lock):
    """A reentrant lock that serves waiters in the order in which they came, owned by the thread that acquired it.

    The guarantees are those of `Lock`, and one more: a waiter that finished queueing before another asked is served
    before it. That relies on no clock. It no longer holds for a waiter whose places were forgotten by so many nodes
    that less than a quorum still has them, or that was silent for 3 s (a stopped process). Nobody barges: nodes refuse
    a free lock to all but the first in the queue, so `acquire(False)` may be False while nobody holds it.

    Use one kind of lock per name: a `Lock` of the same name excludes this one, but does not heed its queue.

    Algorithm: Lamport's bakery with a quorum instead of shared memory. Made by `Client.get_fair_lock`.
    """

    _KIND = FAIR_LOCK
    _QUEUE: ClassVar[type[Place]] = Ticket


class AsyncFairLock(AsyncLock):
    """A reentrant lock that serves waiters in the order in which they came, owned by the task that acquired it.

    As `FairLock`, with tasks instead of threads. Made by `AsyncClient.get_fair_lock`.
    """

    _KIND = FAIR_LOCK
    _QUEUE: ClassVar[type[Place]] = Ticket
