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

from typing import Any
from weakref import ReferenceType

from redsync._core.holds import HoldState
from redsync._core.session import RunnerT_co
from redsync._facades.claimable import Acquire, HoldT
from redsync._facades.exclusive import AsyncExclusiveLock, Exclusive, ExclusiveLock
from redsync._protocols import lock as protocol
from redsync.exceptions import ReentrantCallError

__all__ = ["AsyncLock", "Lock", "Reentrant"]


class Reentrant(Exclusive[RunnerT_co, HoldT]):
    """A lock that its owner may acquire repeatedly, and must release as often."""

    _KIND = protocol.LOCK
    _acquire_steps: Acquire = staticmethod(protocol.acquire)

    def _state(self) -> HoldState | None:
        return self._runner.owner().holds.get(self._keys.hold)

    def _refuse_other_task(self, task: ReferenceType[Any]) -> None:
        state = self._state()
        other = None if state is None or state.task is None else state.task()
        if other is not None and other is not task() and not other.done():
            raise ReentrantCallError(
                f"lock {self._name!r} is held by another task of this thread, which is one owner for a Client: both "
                f"tasks would be inside. With asyncio use AsyncClient, whose locks belong to tasks"
            )

    def _may_release(self, hold: Any) -> bool:
        return hold._entered_by is self._runner.owner()


class Lock(Reentrant[Any, Any], ExclusiveLock):
    """A reentrant lock over all nodes of a client, owned by the thread that acquired it.

    At any instant at most one owner has a valid hold, as long as clock rates differ by at most `drift_factor`; a hold
    is valid until its `remaining()` is 0. The lock stays available while a quorum of nodes answers, and becomes free
    within one lease after its holder dies. A thread may acquire it repeatedly, and must release it as often.

    Without its own lease, the watchdog renews the hold as long as the thread has it. With one, the hold ends with the
    lease. The hold of a `with` lives as long as the `with`, whichever threads run it.

    Algorithm: Redlock with the reentrant layout of Redisson's RLock. Made by `Client.get_lock`.
    """

    _OWNER = "this thread"


class AsyncLock(Reentrant[Any, Any], AsyncExclusiveLock):
    """A reentrant lock over all nodes of a client, owned by the task that acquired it.

    The guarantees are those of `Lock`. Only the task that acquired the lock may release it; its `AsyncHold` may be
    passed on. If a task ends without releasing what it acquired by `acquire()`, the client releases it and logs a
    warning. The hold of an `async with` lives as long as the `async with`, whichever tasks run it.

    Made by `AsyncClient.get_lock`.
    """

    _OWNER = "this task"
