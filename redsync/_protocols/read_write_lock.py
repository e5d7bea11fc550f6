"""The read-write lock: many readers or one writer. Two kinds of claim share the keys of one lock.

Readers and writers both need a quorum of nodes, and two quorums share a node, on which they meet. Each claim has its
own expiry, so renewals by one owner do not keep the claim of a dead one alive. An owner that writes may also read, and
continue reading after it releases the write lock. An owner that only reads must not ask to write.

Waiters are served by arrival (see `queue_policies`). A waiting writer keeps new readers out, and readers that have
waited longer than any writer are served together.
"""

from __future__ import annotations

from typing import Any

from redsync._core.effects import Broadcast, Steps, broadcast
from redsync._core.holds import HoldState, Owner
from redsync._core.keys import LockKeys
from redsync._core.scripts import ClaimKind, Command, Script
from redsync._core.session import Session
from redsync._protocols.answers import WRONG_TYPE, Refusal, has_answers, no_quorum, type_error
from redsync._protocols.claims import AcquireRequest
from redsync._protocols.holding import check
from redsync._protocols.lock import acquire
from redsync._protocols.surveys import release_claims
from redsync.exceptions import UpgradeError

__all__ = ["READ", "WRITE", "acquire_to_write", "force_release", "is_held"]

READ = ClaimKind.of("read_write_lock", b"zset")._replace(noun="read_lock", mode=b"r:")
WRITE = READ._replace(noun="write_lock", mode=b"w:")

LOOK = Script.load("read_write_lock_look")


def acquire_to_write(session: Session, request: AcquireRequest, now: float) -> Steps[HoldState | None]:
    """Acquire the write lock; return the hold, or None if others held it all the time.

    Raises:
        UpgradeError: The owner holds the read lock, but not the write lock.
        LeaseLostError: The owner held the read lock or the write lock, and lost it.
        QuorumError: Too few nodes answered: at once for one try, else at the deadline.
        KeyTypeError: The key holds a value of another type.
    """
    holds, keys = request.owner.holds, request.keys
    reading = holds.get((keys.lock, READ.mode))
    if reading is not None and keys.hold not in holds:
        yield from check(reading, now)
        todo = "release the read lock first, then look again"
        raise UpgradeError(request.name, f"lock {request.name!r}: a reader can't become a writer: {todo}")
    return (yield from acquire(session, request, now))


_AT_ONCE = 500
"""The most claims that one script call lists."""


def _read_claims(reply: Any) -> list[bytes] | Refusal:
    if reply == -1:
        return WRONG_TYPE
    if reply.__class__ is not list or not all(
        claim.__class__ is bytes and claim[:2] in (b"r:", b"w:") for claim in reply
    ):
        raise ValueError("the reply to a look is the claims, or -1")
    return reply


def is_held(session: Session, kind: ClaimKind, name: str | bytes, keys: LockKeys, owner: Owner) -> Steps[bool]:
    """Return whether a quorum of nodes has a reader, or a writer, as `kind` says.

    Raises:
        QuorumError: Too few nodes answered to tell.
    """
    tally = yield from broadcast(
        Broadcast(
            Command(LOOK, (keys.lock,), (kind.mode, 1)),
            owner,
            _read_claims,
            session.timing.node_timeout,
            # A node that failed may keep a claim too: as long as that matters, hear every node.
            thorough=True,
        )
    )
    if tally.without_quorum:
        raise no_quorum(name, tally)
    # An owner with a minority may have the silent nodes too. Then no other owner can get the lock.
    silent = len(tally.nodes) - tally.granted - tally.refused
    return tally.won or (tally.granted > 0 and tally.granted + silent >= tally.quorum)


def force_release(session: Session, kind: ClaimKind, name: str | bytes, keys: LockKeys, owner: Owner) -> Steps[bool]:
    """Force the release of the current claims, those of the writer or of all readers; return whether a node had one.

    The commands name the claims that were seen, so a command that comes late removes no claim of a later holder.

    Raises:
        QuorumError: Too few nodes answered; those that did have freed the lock.
        KeyTypeError: The key holds a value of another type.
    """
    look = Command(LOOK, (keys.lock,), (kind.mode, _AT_ONCE))
    timeout, held = session.timing.node_timeout, False
    while True:
        ask = Broadcast(look, owner, _read_claims, timeout, decide=has_answers, lingers=True)
        tally = yield from broadcast(ask)
        if tally.without_quorum:
            raise no_quorum(name, tally)
        seen = [claims for claims in tally.grants + tally.refusals if claims is not WRONG_TYPE]
        if (error := type_error(name, tally)) is not None:
            raise error
        claims = dict.fromkeys(claim for reply in seen for claim in reply)
        freed = yield from release_claims(session, kind, name, keys, owner, claims=claims)
        held = held or freed
        # A node lists at most that many at a time. If none listed that many, these were all.
        if max(map(len, seen), default=0) < _AT_ONCE:
            return held
