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
    from redsync._core.observing import HoldLost as HoldLost, HoldOrphaned as HoldOrphaned, NodeChanged as NodeChanged
    from redsync._core.quorum import Choice as Choice, Vote as Vote
    from redsync._drivers.nodes import NodeStatus as NodeStatus
    from redsync._facades.fair_lock import *
    from redsync._facades.fenced_lock import *
    from redsync._facades.hold import AsyncHold as AsyncHold, Hold as Hold
    from redsync._facades.latch import *
    from redsync._facades.lock import *
    from redsync._facades.lock_info import *
    from redsync._facades.multi_hold import AsyncMultiHold as AsyncMultiHold, MultiHold as MultiHold
    from redsync._facades.multi_lock import AsyncMultiLock as AsyncMultiLock, MultiLock as MultiLock
    from redsync._facades.mutex import *
    from redsync._facades.permit import *
    from redsync._facades.rate_limiter import (
        AsyncRateLimiter as AsyncRateLimiter,
        AsyncRatePermit as AsyncRatePermit,
        RateLimiter as RateLimiter,
        RatePermit as RatePermit,
    )
    from redsync._facades.read_write_lock import *
    from redsync._facades.semaphore import *
    from redsync._facades.spin_lock import *
    from redsync._protocols.semaphore import PermitHolder as PermitHolder
    from redsync.client import Client as Client
    from redsync.client_async import *
    from redsync.exceptions import *

__version__ = "0.1.0"

_HOMES = {
    name: f"redsync.{module}"
    for module, names in {
        "_core.observing": "HoldLost HoldOrphaned NodeChanged",
        "_core.quorum": "Choice Vote",
        "_drivers.nodes": "NodeStatus",
        "_facades.fair_lock": "AsyncFairLock FairLock",
        "_facades.fenced_lock": "AsyncFencedHold AsyncFencedLock FencedHold FencedLock",
        "_facades.hold": "AsyncHold Hold",
        "_facades.latch": "AsyncCountDownLatch CountDownLatch",
        "_facades.lock": "AsyncLock Lock",
        "_facades.lock_info": "Holder LockInfo",
        "_facades.multi_hold": "AsyncMultiHold MultiHold",
        "_facades.multi_lock": "AsyncMultiLock MultiLock",
        "_facades.mutex": "AsyncMutex Mutex",
        "_facades.permit": "AsyncPermit Permit",
        "_facades.rate_limiter": "AsyncRateLimiter AsyncRatePermit RateLimiter RatePermit",
        "_facades.read_write_lock": "AsyncReadLock AsyncReadWriteLock AsyncWriteLock ReadLock ReadWriteLock WriteLock",
        "_facades.semaphore": "AsyncSemaphore Semaphore",
        "_facades.spin_lock": "AsyncSpinLock SpinLock",
        "_protocols.semaphore": "PermitHolder",
        "client": "Client",
        "client_async": "AsyncClient",
        "exceptions": "AcquireTimeout ClientClosedError ConfigurationError KeyTypeError LeaseLostError NotOwnedError "
        "OverReleaseError QuorumError RedsyncError ReentrantCallError UpgradeError",
    }.items()
    for name in names.split()
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

if not TYPE_CHECKING:  # Type checkers must refuse unknown names.
    __all__ = list(_HOMES)

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            value = getattr(import_module(_HOMES[name]), name)
        except AttributeError as error:
            # `from redsync import ...` would drop it, and with it the name of the library that is too old.
            raise ImportError(f"redsync.{name} can't be loaded: {error}") from error
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
