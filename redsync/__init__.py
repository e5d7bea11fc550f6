"""redsync: distributed synchronizers over independent Redis masters.

```python
from redsync import Client

client = Client(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])
with client.get_lock("report:2026") as hold:
    ...
```

Names are loaded at their first use: the pytest plugin imports this package in every test run. Each client's module
imports all that its client uses, so that nothing is left to import in a thread while another one forks.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from redsync._core.events import HoldLost, HoldOrphaned, NodeChanged
    from redsync._core.quorum import Choice, Vote
    from redsync._drivers.nodes import NodeStatus
    from redsync._facades.fair_lock import AsyncFairLock, FairLock
    from redsync._facades.fenced_lock import AsyncFencedLock, FencedLock
    from redsync._facades.hold import AsyncHold, Hold
    from redsync._facades.latch import AsyncCountDownLatch, CountDownLatch
    from redsync._facades.lock import AsyncLock, Lock
    from redsync._facades.lock_info import Holder, LockInfo
    from redsync._facades.multi_hold import AsyncMultiHold, MultiHold
    from redsync._facades.multi_lock import MultiLock
    from redsync._facades.multi_lock_async import AsyncMultiLock
    from redsync._facades.mutex import AsyncMutex, Mutex
    from redsync._facades.permit import AsyncPermit, Permit, PermitHolder
    from redsync._facades.rate_limiter import AsyncRateLimiter, RateLimiter
    from redsync._facades.read_write_lock import (
        AsyncReadLock,
        AsyncReadWriteLock,
        AsyncWriteLock,
        ReadLock,
        ReadWriteLock,
        WriteLock,
    )
    from redsync._facades.semaphore import AsyncSemaphore, Semaphore
    from redsync._facades.spin_lock import AsyncSpinLock, SpinLock
    from redsync.client import Client
    from redsync.client_async import AsyncClient
    from redsync.exceptions import (
        AcquireTimeout,
        ClientClosedError,
        ConfigurationError,
        KeyTypeError,
        LeaseLostError,
        NotOwnedError,
        OverReleaseError,
        QuorumError,
        RedsyncError,
        ReentrantCallError,
        UpgradeError,
    )

__all__ = [
    "AcquireTimeout",
    "AsyncClient",
    "AsyncCountDownLatch",
    "AsyncFairLock",
    "AsyncFencedLock",
    "AsyncHold",
    "AsyncLock",
    "AsyncMultiHold",
    "AsyncMultiLock",
    "AsyncMutex",
    "AsyncPermit",
    "AsyncRateLimiter",
    "AsyncReadLock",
    "AsyncReadWriteLock",
    "AsyncSemaphore",
    "AsyncSpinLock",
    "AsyncWriteLock",
    "Choice",
    "Client",
    "ClientClosedError",
    "ConfigurationError",
    "CountDownLatch",
    "FairLock",
    "FencedLock",
    "Hold",
    "HoldLost",
    "HoldOrphaned",
    "Holder",
    "KeyTypeError",
    "LeaseLostError",
    "Lock",
    "LockInfo",
    "MultiHold",
    "MultiLock",
    "Mutex",
    "NodeChanged",
    "NodeStatus",
    "NotOwnedError",
    "OverReleaseError",
    "Permit",
    "PermitHolder",
    "QuorumError",
    "RateLimiter",
    "ReadLock",
    "ReadWriteLock",
    "RedsyncError",
    "ReentrantCallError",
    "Semaphore",
    "SpinLock",
    "UpgradeError",
    "Vote",
    "WriteLock",
]

_HOMES = {
    "AsyncClient": "redsync.client_async",
    "AsyncCountDownLatch": "redsync._facades.latch",
    "AsyncFairLock": "redsync._facades.fair_lock",
    "AsyncFencedLock": "redsync._facades.fenced_lock",
    "AsyncHold": "redsync._facades.hold",
    "AsyncLock": "redsync._facades.lock",
    "AsyncMultiHold": "redsync._facades.multi_hold",
    "AsyncMultiLock": "redsync._facades.multi_lock_async",
    "AsyncMutex": "redsync._facades.mutex",
    "AsyncPermit": "redsync._facades.permit",
    "AsyncRateLimiter": "redsync._facades.rate_limiter",
    "AsyncReadLock": "redsync._facades.read_write_lock",
    "AsyncReadWriteLock": "redsync._facades.read_write_lock",
    "AsyncSemaphore": "redsync._facades.semaphore",
    "AsyncSpinLock": "redsync._facades.spin_lock",
    "AsyncWriteLock": "redsync._facades.read_write_lock",
    "Choice": "redsync._core.quorum",
    "Client": "redsync.client",
    "CountDownLatch": "redsync._facades.latch",
    "FairLock": "redsync._facades.fair_lock",
    "FencedLock": "redsync._facades.fenced_lock",
    "Hold": "redsync._facades.hold",
    "HoldLost": "redsync._core.events",
    "HoldOrphaned": "redsync._core.events",
    "Holder": "redsync._facades.lock_info",
    "Lock": "redsync._facades.lock",
    "LockInfo": "redsync._facades.lock_info",
    "MultiHold": "redsync._facades.multi_hold",
    "MultiLock": "redsync._facades.multi_lock",
    "Mutex": "redsync._facades.mutex",
    "NodeChanged": "redsync._core.events",
    "NodeStatus": "redsync._drivers.nodes",
    "Permit": "redsync._facades.permit",
    "PermitHolder": "redsync._facades.permit",
    "RateLimiter": "redsync._facades.rate_limiter",
    "ReadLock": "redsync._facades.read_write_lock",
    "ReadWriteLock": "redsync._facades.read_write_lock",
    "Semaphore": "redsync._facades.semaphore",
    "SpinLock": "redsync._facades.spin_lock",
    "Vote": "redsync._core.quorum",
    "WriteLock": "redsync._facades.read_write_lock",
}

# Each kind of synchronizer; `redsync._kinds` explains the columns. A plain tuple, because it costs nothing to load.
_KINDS = (
    ("lock", "lock", "lock", "queue", "lock"),
    ("fair_lock", "fair", "lock", "order", "lock"),
    ("fenced_lock", "fenced", "lock", "queue", "fenced lock"),
    ("spin_lock", "spin", "lock", "pauses", "lock"),
    ("mutex", "mutex", "mutex", "queue", "mutex"),
    ("read_write_lock", "read-write", "read-write", "order", "read-write lock"),
    ("semaphore", "semaphore", "semaphore", "order", "semaphore"),
    ("rate_limiter", "limiter", "limiter", "order", "rate limiter"),
    ("count_down_latch", "latch", "latch", "together", "latch"),
    ("multi_lock", "multi", "multi", "queue", ""),
)


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(import_module(_HOMES.get(name, "redsync.exceptions")), name)
    except AttributeError as error:
        # `from redsync import ...` would drop it, and with it the name of the library that is too old.
        raise ImportError(f"redsync.{name} can't be loaded: {error}") from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
