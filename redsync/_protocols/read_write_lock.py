"""The read-write lock: many readers or one writer. Two kinds of claim share the keys of one lock.

Readers and writers both need a quorum of nodes, and two quorums share a node, on which they meet. Each claim has its
own expiry, so renewals by one owner do not keep the claim of a dead one alive. An owner that writes may also read, and
continue reading after it releases the write lock. An owner that only reads must not ask to write.

Waiters are served by arrival (see `queue_policies`). A waiting writer keeps new readers out, and readers that have
waited longer than any writer are served together.
"""

from __future__ import annotations

from redsync._core.effects import Steps
from redsync._core.holds import HoldState
from redsync._core.scripts import ClaimKind
from redsync._core.session import Session
from redsync._protocols.claims import AcquireRequest
from redsync._protocols.holding import check
from redsync._protocols.lock import acquire
from redsync._protocols.queue_policies import FifoByArrival
from redsync.exceptions import UpgradeError

__all__ = ["READ", "WRITE", "acquire_to_write"]

READ = ClaimKind.of("read_write_lock", b"zset", label="read lock")._replace(queue=FifoByArrival, mode=b"r:")
WRITE = READ._replace(mode=b"w:", label="write lock")


def acquire_to_write(session: Session, request: AcquireRequest, now: float) -> Steps[HoldState | None]:
    """Acquire the write lock; return the hold, or None if others held it all the time.

    Raises:
        UpgradeError: The owner holds the read lock, but not the write lock.
        LeaseLostError: The owner held the read lock or the write lock, and lost it.
        QuorumError: Too few nodes answered: at once for one try, else at the deadline or outage timeout.
        KeyTypeError: The key holds a value of another type.
    """
    holds, keys = request.owner.holds, request.keys
    reading = holds.get((keys.lock, READ.mode))
    if reading is not None and keys.hold not in holds:
        yield from check(reading, now)
        todo = "release the read lock first, then look again"
        raise UpgradeError(request.name, f"lock {request.name!r}: a reader can't become a writer: {todo}")
    return (yield from acquire(session, request, now))
