"""Operators' view of a lock or mutex: look at it from outside, and force its release."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from redsync._core.claims import ClaimKind
from redsync._core.effects import Broadcast, Command, Steps, broadcast
from redsync._core.keys import LockKeys
from redsync._core.ownership import Owner
from redsync._core.presence import Claim, ClientRecord, owner_of
from redsync._core.quorum import Tally, Verdict
from redsync._core.runner import Session
from redsync._core.scripts import Script
from redsync._protocols.answers import read_forced
from redsync._protocols.rounds import has_answers, no_quorum, type_error

__all__ = ["Look", "force_release", "holder", "survey"]

FORCE_RELEASE = Script.load("lock_force_release")
INSPECT = Script.load("lock_inspect")

_MOST_ROUNDS = 8
"""The most claims that one forced release removes: contenders may have a minority of nodes each."""


@dataclass(frozen=True, slots=True)
class Look:
    """One node's knowledge of a lock; true if it has a holder there.

    Attributes:
        kind: The type of the value at the key, "none" if there is no value; "fenced" for a lock with tokens.
        remaining: Seconds until the node forgets the claim; None if it never does, or has none.
        claim: The holder's claim; None if the lock is free, or of a kind that several may hold at a time.
        count: The hold count.
        waiters: The waiting owners, longest wait first; 100 at most.
        client: The record of the holder's client; None if unknown.
        claims: The claims on a read-write lock, 64 at most; empty for other kinds.
    """

    kind: str
    remaining: float | None
    claim: bytes | None
    count: int
    waiters: tuple[str, ...]
    client: ClientRecord | None
    claims: tuple[Claim, ...] = ()

    @classmethod
    def read(cls, reply: Any) -> Look:
        """Return the content of a reply of `lock_inspect`."""
        kind, remaining_ms, holder, waiters, *record = reply
        claims: tuple[Claim, ...] = ()
        if kind == b"zset":
            claims, holder = tuple(Claim.read(words, by_thread=True) for words in holder), []
        if type(remaining_ms) is not int:
            raise ValueError(f"{remaining_ms!r:.80} is not a time")
        claim, count = (bytes(holder[0]), int(holder[1])) if len(holder) == 2 else (None, 0)
        return cls(
            kind.decode(),
            remaining_ms / 1000 if remaining_ms >= 0 else None,
            claim,
            count,
            tuple(waiter.decode("utf-8", "replace") for waiter in waiters),
            ClientRecord.unpack(record[0]) if record else None,
            claims,
        )

    def __bool__(self) -> bool:
        return self.claim is not None

    @property
    def owner(self) -> str | None:
        """The owner of the claim."""
        if self.claim is None:
            return None
        return self.claim.decode("utf-8", "backslashreplace") if self.kind == "string" else owner_of(self.claim)


def look(
    session: Session, keys: LockKeys, owner: Owner, decide: Callable[[Tally], Verdict], *, lingers: bool = False
) -> Steps[Tally]:
    """Ask all nodes about a lock: each answers with a `Look`."""
    return (
        yield from broadcast(
            Broadcast(
                Command(INSPECT, (keys.lock, keys.queue, keys.token), ()),
                owner,
                Look.read,
                session.timing.node_timeout,
                decide=decide,
                lingers=lingers,
            )
        )
    )


def survey(session: Session, keys: LockKeys, owner: Owner) -> Steps[Tally]:
    """Ask all nodes about a lock, and wait a little for those slower than a quorum."""
    return (yield from look(session, keys, owner, has_answers, lingers=True))


def holder(session: Session, name: str | bytes, keys: LockKeys, owner: Owner) -> Steps[str | None]:
    """Return the owner that holds the lock on a quorum of nodes; None if there is none.

    Raises:
        QuorumError: Too few nodes answered to tell.
    """

    def owners(tally: Tally) -> Counter[str]:
        return Counter(str(look.owner) for look in tally.grants)

    def decide(tally: Tally) -> Verdict:
        unheard = len(tally.nodes) - tally.granted - tally.refused - tally.failed
        most = max(owners(tally).values(), default=0)
        if most >= tally.quorum:
            return Verdict.WON
        # A node that failed may keep the claim too: as long as that matters, hear every node.
        return Verdict.PENDING if unheard and most + unheard + tally.failed >= tally.quorum else Verdict.LOST

    tally = yield from look(session, keys, owner, decide)
    if tally.without_quorum:
        raise no_quorum(name, tally)
    found = owners(tally).most_common(1)
    # An owner with a minority may have the silent nodes too. Then no other owner can get it, so it counts as held.
    silent = len(tally.nodes) - tally.granted - tally.refused
    return found[0][0] if found and found[0][1] + silent >= tally.quorum else None


def force_release(session: Session, kind: ClaimKind, name: str | bytes, keys: LockKeys, owner: Owner) -> Steps[bool]:
    """Force the release of all current claims; return whether a node had one.

    The commands name the claims that were seen, so a command that comes late removes no claim of a later holder.

    Raises:
        QuorumError: Too few nodes answered; those that did have freed the lock.
        KeyTypeError: The key holds a value of another type.
    """
    tally = yield from survey(session, keys, owner)
    if tally.without_quorum:
        raise no_quorum(name, tally)
    claims = dict.fromkeys(look.claim for look in tally.grants)
    held = False
    # Even if there was no holder, one command must check the type of the key.
    for claim in list(claims)[:_MOST_ROUNDS] or [b""]:
        command = Command(FORCE_RELEASE, keys.all, (claim or b"", kind.value_type, keys.channel))
        timeout = session.timing.node_timeout
        tally = yield from broadcast(Broadcast(command, owner, read_forced, timeout))
        if not tally.won:
            raise type_error(name, tally) or no_quorum(name, tally)
        held = held or any(forced.had for forced in tally.grants)
    return held
