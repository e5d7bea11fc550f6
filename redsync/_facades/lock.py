"""The reentrant lock, for threads and for asyncio.

```python
lock = client.get_lock("report:2026")
with lock as hold:  # waits; the body never runs without the lock
    write_report()
    hold.check()  # raises LeaseLostError if the lock was lost
```

`redsync._protocols.lock` makes the decisions; this module has only the interface.
"""

from __future__ import annotations

from redsync._facades.exclusive import AsyncExclusiveLock, ExclusiveLock

__all__ = ["AsyncLock", "Lock"]


class Lock(ExclusiveLock):
    """A reentrant lock over all nodes of a client, owned by the thread that acquired it.

    At any instant at most one owner has a valid hold, as long as clock rates differ by at most `drift_factor`; a hold
    is valid until its `remaining()` is 0. The lock stays available while a quorum of nodes answers, and becomes free
    within one lease after its holder dies. A thread may acquire it repeatedly, and must release it as often.

    Without its own lease, the watchdog renews the hold as long as the thread has it. With one, the hold ends with the
    lease. The hold of a `with` lives as long as the `with`, whichever threads run it.

    Algorithm: Redlock with the reentrant layout of Redisson's RLock. Made by `Client.get_lock`.
    """


class AsyncLock(AsyncExclusiveLock):
    """A reentrant lock over all nodes of a client, owned by the task that acquired it.

    The guarantees are those of `Lock`. Only the task that acquired the lock may release it; its `AsyncHold` may be
    passed on. If a task ends without releasing what it acquired by `acquire()`, the client releases it and logs a
    warning. The hold of an `async with` lives as long as the `async with`, whichever tasks run it.

    Made by `AsyncClient.get_lock`.
    """
