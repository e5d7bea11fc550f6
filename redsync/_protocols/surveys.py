"""Operators' views: one lock or mutex from outside, and the end that they force on it; names of any kind, node by node.

**Names** (`NameLook` and below) are for people: no quorum decides anything there; callers ask and show each node by
itself. So that half has no protocols, but the commands for such questions, commands that remove one claim, and readers
for the replies.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from redsync._core.client_records import Claim, ClientRecord, owner_of
from redsync._core.effects import Broadcast, Steps, broadcast
from redsync._core.holds import Owner
from redsync._core.keys import MAX_NAME, LatchKeys, LockKeys, is_client_key, voter_tag
from redsync._core.permits import SlotKeys
from redsync._core.quorum import ReplyParser, Tally, Verdict
from redsync._core.scripts import ClaimKind, Command, Script
from redsync._core.session import Session
from redsync._protocols.answers import WRONG_TYPE, Refusal, has_answers, no_quorum, type_error
from redsync._protocols.holding import had

__all__ = [
    "LatchLook",
    "Look",
    "NameLook",
    "Waiter",
    "break_commands",
    "force_release",
    "holder",
    "key_patterns",
    "look_command",
    "name_of_key",
    "release_claims",
    "survey",
]

INSPECT_LOCK = Script.load("lock_inspect")

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
    session: Session,
    keys: LockKeys,
    owner: Owner,
    decide: Callable[[Tally], Verdict],
    *,
    parse: ReplyParser = Look.read,
    lingers: bool = False,
) -> Steps[Tally]:
    """Ask all nodes about a lock: each answers with a `Look`."""
    return (
        yield from broadcast(
            Broadcast(
                Command(INSPECT_LOCK, (keys.lock, keys.queue, keys.token), ()),
                owner,
                parse,
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

    def parse(reply: Any) -> Look | Refusal:
        found = Look.read(reply)
        kind_of_value = "hash" if found.kind == "fenced" else found.kind
        return found if kind_of_value in (kind.value_type.decode(), "none") else WRONG_TYPE

    tally = yield from look(session, keys, owner, has_answers, parse=parse, lingers=True)
    if tally.without_quorum:
        raise no_quorum(name, tally)
    if tally.refusals.count(WRONG_TYPE) > len(tally.nodes) - tally.quorum:
        raise type_error(name, tally) or no_quorum(name, tally)
    claims = dict.fromkeys(look.claim for look in tally.grants)
    return (yield from release_claims(session, kind, name, keys, owner, claims=list(claims)[:_MOST_ROUNDS]))


def release_claims(
    session: Session, kind: ClaimKind, name: str | bytes, keys: LockKeys, owner: Owner, *, claims: Iterable[bytes]
) -> Steps[bool]:
    """Release claims one by one, as if their owners did; return whether a node had one.

    Raises:
        QuorumError: Too few nodes answered; those that did have released the claims so far.
    """
    held = False
    for claim in claims:
        command = Command(kind.release, keys.all, (claim, 0, keys.channel))
        tally = yield from broadcast(Broadcast(command, owner, had, session.timing.node_timeout, decide=has_answers))
        if not tally.won:
            raise no_quorum(name, tally)
        held = held or tally.granted > 0
    return held


INSPECT_NAME: Final = Script.load("name_inspect")

_RELEASES: Final = {
    "lock": "lock_release",
    "fenced lock": "lock_release",
    "mutex": "lock_release",
    "read-write lock": "read_write_lock_release",
}
_BY_THREAD: Final = (b"lock", b"fenced lock", b"read-write lock")
"""The kinds whose owner is a thread or task, not an object."""

_SIDE_KEY: Final = re.compile(rb"redsync_(?:queue|limit|latch):(?:\{(?P<braced>.*)\}|:(?P<tagged>.*))", re.DOTALL)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")


def _seconds(ms: int) -> float | None:
    return ms / 1000 if ms >= 0 else None


@dataclass(frozen=True, slots=True)
class Waiter:
    """A waiter, as one node knows it.

    Attributes:
        owner: The waiting owner.
        client: The record of its client; None if unknown.
    """

    owner: str
    client: ClientRecord | None


@dataclass(frozen=True, slots=True)
class LatchLook:
    """One node's knowledge of a latch.

    Attributes:
        size: The count to which the latch was set.
        left: The remaining count, as far as this node knows.
        remaining: Seconds until the node forgets the latch.
        waiting: The number of waiters for the latch.
    """

    size: int
    left: int
    remaining: float | None
    waiting: int


@dataclass(frozen=True, slots=True)
class NameLook:
    """All that one node keeps under a name.

    Attributes:
        kind: "lock", "fenced lock", "mutex", "read-write lock", "semaphore", "rate limiter", "none", or the type of a
            foreign value.
        claims: The holders' claims, at most as many as requested.
        held: The number of claims.
        waiters: The waiters, longest wait first, at most as many as requested.
        waiting: The number of waiters.
        permits: The number of permits; 0 for kinds without permits.
        window: A rate limiter's window in seconds; 0.0 for other kinds.
        latch: The latch of that name; None if there is none.
    """

    kind: str
    claims: tuple[Claim, ...]
    held: int
    waiters: tuple[Waiter, ...]
    waiting: int
    permits: int
    window: float
    latch: LatchLook | None

    @classmethod
    def read(cls, reply: Any) -> NameLook:
        """Return the content of a reply of `name_inspect`.

        Raises:
            ValueError: The script never replies so.
        """
        try:
            kind, claims, held, waiters, waiting, permits, window_us, latch = reply
            numbers = held, waiting, permits, window_us, *latch
            if {type(number) for number in numbers} != {int} or len(latch) not in (0, 4):
                raise ValueError("not a number")
            return cls(
                kind.decode(),
                tuple(Claim.read(claim, by_thread=kind in _BY_THREAD) for claim in claims),
                held,
                tuple(
                    Waiter(_text(owner), ClientRecord.unpack(record) if record else None) for owner, record in waiters
                ),
                waiting,
                permits,
                window_us / 1e6,
                LatchLook(latch[0], latch[1], _seconds(latch[2]), latch[3]) if latch else None,
            )
        except (TypeError, ValueError, KeyError, AttributeError):
            raise ValueError(f"{reply!r:.80}") from None

    @property
    def all_waiting(self) -> int:
        """The number of waiters, including those for the latch."""
        return self.waiting + (self.latch.waiting if self.latch else 0)

    @property
    def is_empty(self) -> bool:
        """True if the node keeps nothing under that name."""
        return self.kind == "none" and not self.waiting and self.latch is None


def look_command(prefix: bytes, name: bytes, most: int = 100) -> Command:
    """Return the command that asks what a node keeps under a name; `NameLook.read` reads the reply.

    The node lists at most `most` holders, and as many waiters.
    """
    keys, latch = SlotKeys.of(prefix, name), LatchKeys.of(prefix, name)
    everything = (keys.lock, keys.queue, keys.places, keys.slots, keys.limit, keys.token, latch.latch, latch.waiters)
    return Command(INSPECT_NAME, everything, (most,))


def break_commands(prefix: bytes, name: bytes, kind: str, claim: bytes) -> list[Command]:
    """Return the commands that remove a claim, as if its owner had released it.

    A node replies 1 to the command that removed the claim. Other claims stay, and the next waiter gets its turn.
    There are no commands for a kind that has no holders.
    """
    keys = SlotKeys.of(prefix, name)
    if kind in ("semaphore", "rate limiter"):
        return [Command(Script.load("semaphore_release"), keys.all, (claim, 0, b""))]
    if kind not in _RELEASES:
        return []
    script, taken = Script.load(_RELEASES[kind]), (keys.lock, keys.queue, keys.places)
    claims = (b"r:" + claim, b"w:" + claim) if kind == "read-write lock" else (claim,)
    return [Command(script, taken, (each, 0, keys.channel)) for each in claims]


def key_patterns(prefix: bytes, pattern: bytes) -> list[bytes]:
    """Return patterns of all keys that show a name which matches `pattern`; `name_of_key` reads the keys."""
    full = re.sub(rb"([\\*?\[\]^])", rb"\\\1", prefix) + pattern
    return [full, b"redsync_*:{%s}" % full, b"redsync_*::%s" % full]


def name_of_key(prefix: bytes, key: bytes) -> bytes | None:
    """Return the name that a key shows; None if it does not belong to a synchronizer, or accompanies another key."""
    if is_client_key(key):
        return None
    side = _SIDE_KEY.fullmatch(key)
    full = (side["braced"] or side["tagged"] or b"") if side else key
    name = full.removeprefix(prefix)
    if not full.startswith(prefix) or full.startswith(b"redsync_") or voter_tag(full):
        return None
    return name if 1 <= len(name) <= MAX_NAME else None
