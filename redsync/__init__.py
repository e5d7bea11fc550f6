"""redsync: distributed synchronizers over independent Redis masters.

```python
from redsync import Client

client = Client(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])
with client.get_lock("report:2026") as hold:
    ...
```

Names are loaded when they are first used: the pytest plugin imports this package in every test run.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from redsync._core.events import HoldLost, HoldOrphaned, NodeChanged
    from redsync._core.quorum import Choice, Vote
    from redsync._drivers.nodes import NodeStatus
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
    from redsync.fair_lock import AsyncFairLock, FairLock
    from redsync.fenced_lock import AsyncFencedLock, FencedLock
    from redsync.hold import AsyncHold, Hold
    from redsync.latch import AsyncCountDownLatch, CountDownLatch
    from redsync.lock import AsyncLock, Lock
    from redsync.lock_info import Holder, LockInfo
    from redsync.multi_hold import AsyncMultiHold, MultiHold
    from redsync.multi_lock import MultiLock
    from redsync.multi_lock_async import AsyncMultiLock
    from redsync.mutex import AsyncMutex, Mutex
    from redsync.permit import AsyncPermit, Permit, PermitHolder
    from redsync.rate_limiter import AsyncRateLimiter, RateLimiter
    from redsync.read_write_lock import (
        AsyncReadLock,
        AsyncReadWriteLock,
        AsyncWriteLock,
        ReadLock,
        ReadWriteLock,
        WriteLock,
    )
    from redsync.semaphore import AsyncSemaphore, Semaphore
    from redsync.spin_lock import AsyncSpinLock, SpinLock

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
    "AsyncCountDownLatch": "redsync.latch",
    "AsyncFairLock": "redsync.fair_lock",
    "AsyncFencedLock": "redsync.fenced_lock",
    "AsyncHold": "redsync.hold",
    "AsyncLock": "redsync.lock",
    "AsyncMultiHold": "redsync.multi_hold",
    "AsyncMultiLock": "redsync.multi_lock_async",
    "AsyncMutex": "redsync.mutex",
    "AsyncPermit": "redsync.permit",
    "AsyncRateLimiter": "redsync.rate_limiter",
    "AsyncReadLock": "redsync.read_write_lock",
    "AsyncReadWriteLock": "redsync.read_write_lock",
    "AsyncSemaphore": "redsync.semaphore",
    "AsyncSpinLock": "redsync.spin_lock",
    "AsyncWriteLock": "redsync.read_write_lock",
    "Choice": "redsync._core.quorum",
    "Client": "redsync.client",
    "CountDownLatch": "redsync.latch",
    "FairLock": "redsync.fair_lock",
    "FencedLock": "redsync.fenced_lock",
    "Hold": "redsync.hold",
    "HoldLost": "redsync._core.events",
    "HoldOrphaned": "redsync._core.events",
    "Holder": "redsync.lock_info",
    "Lock": "redsync.lock",
    "LockInfo": "redsync.lock_info",
    "MultiHold": "redsync.multi_hold",
    "MultiLock": "redsync.multi_lock",
    "Mutex": "redsync.mutex",
    "NodeChanged": "redsync._core.events",
    "NodeStatus": "redsync._drivers.nodes",
    "Permit": "redsync.permit",
    "PermitHolder": "redsync.permit",
    "RateLimiter": "redsync.rate_limiter",
    "ReadLock": "redsync.read_write_lock",
    "ReadWriteLock": "redsync.read_write_lock",
    "Semaphore": "redsync.semaphore",
    "SpinLock": "redsync.spin_lock",
    "Vote": "redsync._core.quorum",
    "WriteLock": "redsync.read_write_lock",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES.get(name, "redsync.exceptions")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
