"""The mutex: the canonical Redlock of the Redis documentation, for threads and for asyncio.

```python
mutex = client.get_mutex("report:2026")
with mutex as hold:
    write_report()
```

On the nodes it is a string, as written by `SET key value NX PX lease`. So with `prefix=""` it and the locks of
redlock-py, redlock-rb, node-redlock and go-redsync exclude each other.
"""

from __future__ import annotations

from typing import Any
from weakref import ReferenceType

from redsync._core.effects import Steps
from redsync._core.holds import HoldState
from redsync._core.session import AnyHost, RunnerT_co, Session
from redsync._facades.claimable import HoldT
from redsync._facades.exclusive import AsyncExclusiveLock, ExclusiveLock, Polling
from redsync._protocols import mutex as protocol
from redsync._protocols.claims import AcquireRequest

__all__ = ["AsyncMutex", "Mutex"]


class _OwnedByItself(Polling[RunnerT_co, HoldT]):
    _KIND = protocol.MUTEX
    _OWNER = "this object"

    def __init__(self, host: AnyHost[RunnerT_co], name: str | bytes, **options: Any) -> None:
        self._possession = protocol.Possession()
        super().__init__(host, name, **options)
        self._claimant = self._runner.new_owner

    def __del__(self) -> None:
        # An interruption may have come before `__init__` had begun.
        state = self._possession.state if hasattr(self, "_possession") else None
        if state is not None and state.live:
            # No owner is left to release the mutex. The watchdog does, because a finalizer may interrupt anything.
            self._runner.session.holds.orphan(state.owner)

    def _acquire_steps(self, session: Session, request: AcquireRequest, now: float) -> Steps[HoldState | None]:
        return protocol.acquire(session, request, now, self._possession, self._runner.owner())

    def _refuse_other_task(self, task: ReferenceType[Any]) -> None:
        """Do nothing: a mutex is not reentrant, so tasks of one thread exclude each other."""

    def _may_release(self, hold: HoldT) -> bool:
        # Not a hold that another thread acquired after it released this one, or after this one was lost.
        return self._possession.acquired_by is self._runner.owner() or self._state() is hold._state

    def _state(self) -> HoldState | None:
        return self._possession.state if self._possession.is_held else None


class Mutex(_OwnedByItself[Any, Any], ExclusiveLock):
    """A non-reentrant lock over all nodes of a client, owned by the object that acquired it.

    The guarantees are those of `Lock`. Any thread that has the object may release it, and it stays held when a thread
    ends; a second `acquire` waits, or returns False. If the object is dropped while it holds the lock, the client
    releases it and logs a warning.

    Algorithm: Redlock as in the Redis documentation: a value unique to the request, set if the key is empty; deleted
    and extended only if it is still the same. Made by `Client.get_mutex`.
    """


class AsyncMutex(_OwnedByItself[Any, Any], AsyncExclusiveLock):
    """A non-reentrant lock over all nodes of a client, owned by the object that acquired it.

    Like `Mutex`, with tasks instead of threads. Made by `AsyncClient.get_mutex`.
    """
