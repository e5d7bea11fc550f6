"""The spin lock: retries with growing pauses, and keeps nothing on the nodes while it waits.

```python
with client.get_spin_lock("cache:42", timeout=0.5):
    rebuild_cache()
```

`redsync._protocols.queue_policies` makes the decisions; this module has only the interface.
"""

from __future__ import annotations

from typing import Any

from redsync._facades.exclusive import Polling
from redsync._facades.lock import AsyncLock, Lock

__all__ = ["AsyncSpinLock", "SpinLock"]


class SpinLock(Polling[Any, Any], Lock):
    """A reentrant lock whose waiters poll, owned by the thread that acquired it.

    The guarantees are those of `Lock`. Only the waiting differs: no queue and no wake-ups, only random pauses, up to
    1 ms at first, doubled after each try, up to 0.1 s. It suits locks that are held briefly and rarely contended, and
    nodes whose ACL forbids SUBSCRIBE. Under contention waiters get it late, the last holder often gets it again, and
    each try costs a request per node. It and a `Lock` of the same name exclude each other.

    Made by `Client.get_spin_lock`.
    """

    _always_polls = True


class AsyncSpinLock(Polling[Any, Any], AsyncLock):
    """A reentrant lock whose waiters poll, owned by the task that acquired it.

    Like `SpinLock`, with tasks instead of threads. Made by `AsyncClient.get_spin_lock`.
    """

    _always_polls = True
