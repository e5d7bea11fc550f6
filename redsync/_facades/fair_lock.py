"""The fair lock: first come, first served over independent nodes.

```python
with client.get_fair_lock("printer"):
    print_report()
```

The decisions are in `redsync._protocols.places`; here is only what callers touch.
"""

from __future__ import annotations

from typing import ClassVar

from redsync._facades.lock import AsyncLock, Lock
from redsync._protocols.fair_lock import FAIR_LOCK
from redsync._protocols.places import Place, Ticket

__all__ = ["AsyncFairLock", "FairLock"]


class FairLock(Lock):
    """A reentrant lock that serves who waits in the order in which they came, owned by the thread that acquired it.

    The guarantees are those of `Lock`, and one more: whoever had finished queueing before another asked is served
    before it. No clock is trusted for that. It stops holding for a waiter whose places were forgotten by so many nodes
    that no quorum is left of those that had them, or who was silent for 3 s (a stopped process). Nobody barges: a free
    lock is refused to whoever is not first in the queue, so `acquire(False)` may be False while nobody holds it.

    Use one kind of lock per name: a `Lock` of the same name excludes this one, but does not heed its queue.

    Algorithm: Lamport's bakery with a quorum in the place of shared memory. Made by `Client.get_fair_lock`.
    """

    _KIND = FAIR_LOCK
    _QUEUE: ClassVar[type[Place]] = Ticket


class AsyncFairLock(AsyncLock):
    """A reentrant lock that serves who waits in the order in which they came, owned by the task that acquired it.

    As `FairLock`, with tasks in the place of threads. Made by `AsyncClient.get_fair_lock`.
    """

    _KIND = FAIR_LOCK
    _QUEUE: ClassVar[type[Place]] = Ticket
