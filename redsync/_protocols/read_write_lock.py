"""The read-write lock: many readers or one writer. Two kinds of claim that share the keys of one lock.

Readers and writers both need a quorum of nodes, and two quorums share a node, on which they meet. Each claim has an
expiry of its own, so that one who died is not kept alive by another who renews. An owner that writes may also read, and
go on reading when it has given the write lock back; one that reads must not ask to write.

Who waits is served by arrival (see `places`). A writer that waits keeps new readers out, and readers that wait longer
than any writer are served together.
"""

from __future__ import annotations

from typing import Any

from redsync._core.claims import ClaimKind
from redsync._core.effects import Broadcast, Command, Steps, broadcast
from redsync._core.holds import HoldState
from redsync._core.keys import LockKeys
from redsync._core.ownership import Owner
from redsync._core.quorum import Tally, Verdict
from redsync._core.runner import Session
from redsync._core.scripts import Script
from redsync._protocols.demands import Demand
from redsync._protocols.holding import check
from redsync._protocols.lock import acquire
from redsync._protocols.rounds import no_quorum, type_error
from redsync.exceptions import UpgradeError

__all__ = ["READ", "WRITE", "acquire_to_write", "force_release", "is_held"]

READ = ClaimKind.of("read_lock", b"zset", mode=b"r:")
WRITE = ClaimKind.of("write_lock", b"zset", mode=b"w:")

FORCE_RELEASE = Script.load("read_write_lock_force_release")
LOOK = Script.load("read_write_lock_look")


def acquire_to_write(session: Session, demand: Demand, now: float) -> Steps[HoldState | None]:
    """Take the write lock; return the hold, or None when others held it all the time.

    Raises:
        UpgradeError: The owner reads, and does not write.
        LeaseLostError: The owner had either lock, and lost it.
        QuorumError: Too few nodes answered: at once for one try, else at the deadline.
        KeyTypeError: The key holds a value of another type.
    """
    holds, keys = session.holds, demand.keys
    reading = holds.get((keys.lock, READ.mode), demand.owner)
    if reading is not None and holds.get(keys.hold, demand.owner) is None:
        yield from check(reading, now)
        sentence = f"lock {demand.name!r}: a reader can't become a writer: release the read lock first, and look again"
        raise UpgradeError(demand.name, sentence)
    return (yield from acquire(session, demand, now))


def _is_one(reply: Any) -> bool:
    if reply.__class__ is not int or reply not in (1, 0):
        raise ValueError("a look is answered by 1 or 0")
    return bool(reply)


def _not_foreign(reply: Any) -> bool:
    if reply.__class__ is not int or reply not in (1, 0, -1):
        raise ValueError("a forced release is answered by 1, 0 or -1")
    return bool(reply >= 0)


def is_held(session: Session, kind: ClaimKind, name: str | bytes, keys: LockKeys, owner: Owner) -> Steps[bool]:
    """Return whether a quorum of nodes has anybody who reads, or who writes.

    Raises:
        QuorumError: Too few nodes answered to tell.
    """

    def decide(tally: Tally) -> Verdict:
        if tally.granted >= tally.quorum:
            return Verdict.WON
        # As long as it matters who failed, everybody is heard: it may keep a claim as well.
        unheard = tally.choices.count(None)
        possible = tally.granted + tally.failed + unheard >= tally.quorum
        return Verdict.PENDING if unheard and possible else Verdict.LOST

    tally = yield from broadcast(
        Broadcast(
            Command(LOOK, (keys.lock,), (kind.mode,)),
            owner.lane,
            owner,
            _is_one,
            session.timing.node_timeout,
            decide=decide,
        )
    )
    if tally.without_quorum:
        raise no_quorum(name, tally)
    # Who is there on a minority may be there on the silent nodes too: then nobody else can have it.
    silent = len(tally.nodes) - tally.granted - tally.refused
    return tally.won or (tally.granted > 0 and tally.granted + silent >= tally.quorum)


def force_release(session: Session, kind: ClaimKind, name: str | bytes, keys: LockKeys, owner: Owner) -> Steps[bool]:
    """Take the lock away from the writer, or from all readers; return whether a node still had one.

    Raises:
        QuorumError: Too few nodes answered; those that did have freed it.
        KeyTypeError: The key holds a value of another type.
    """
    command = Command(FORCE_RELEASE, keys.all, (kind.mode,))
    tally = yield from broadcast(Broadcast(command, owner.lane, owner, _not_foreign, session.timing.node_timeout))
    if not tally.won:
        raise type_error(name, tally) or no_quorum(name, tally)
    return 1 in tally.replies
