"""Answers: nodes' replies to an acquire, each read once, on arrival. Grants are true, refusals false."""

from __future__ import annotations

from typing import Any, NamedTuple

from redsync._core.limits import Limit
from redsync._core.permits import SlotGrant, read_slots
from redsync._protocols.shrinking import MOST_BYTES

__all__ = [
    "EXISTING",
    "FOREIGN",
    "FULL",
    "NEW",
    "OTHER_LIMIT",
    "TAKEN",
    "Forced",
    "Refusal",
    "SlotRefusal",
    "read_by_arrival",
    "read_by_ticket",
    "read_forced",
    "read_of_slots",
]

NEW, EXISTING = 1, 2
"""Grants of a lock: the node keeps the claim from now on, or kept it already."""

FULL, TAKEN, OTHER_LIMIT = b"full", b"taken", b"limit"
"""Reasons of a node that refuses slots: no room, others have some of the requested slots, another limit."""


class Refusal(NamedTuple):
    """One node's refusal of a lock.

    Attributes:
        left_ms: Milliseconds for which the node keeps the holder's claim; -1 if that is unlimited or unknown.
        holder: That claim, or the claim of the waiter whose turn it is; "readers" or "writers" for many.
        ticket: The asker's ticket, or the highest ticket of the queue if it has none; 0 in a queue by arrival.
        ahead: The number of waiters before the asker; -1 if it has no place.
    """

    left_ms: int
    holder: bytes
    ticket: int = 0
    ahead: int = -1

    def __bool__(self) -> bool:
        return False


FOREIGN = Refusal(-1, b"")
"""The key holds a value of another type. That counts as one more owner, because it also keeps the lock away."""


class SlotRefusal(NamedTuple):
    """One node's refusal of slots.

    Attributes:
        left_ms: Milliseconds until enough of them run out; -1 if unknown.
        reason: `FULL`, `TAKEN` or `OTHER_LIMIT`.
        ticket: The highest ticket in the node's line.
        ahead: The number of waiters before the asker, or how many slots those want.
        taken: Bit map of the slots taken on the node, if the reason is `TAKEN`.
        limit: The limit that the node knows, if any, and if the reason is `OTHER_LIMIT`.
    """

    left_ms: int
    reason: bytes
    ticket: int
    ahead: int
    taken: bytes = b""
    limit: Limit | None = None

    def __bool__(self) -> bool:
        return False


_CODES: dict[int, int | Refusal] = {NEW: NEW, EXISTING: EXISTING, 0: FOREIGN}

_BY_ARRIVAL = [int, bytes], [int, bytes, int]
_BY_TICKET = [int, bytes, int], [int, bytes, int, int]


def read_by_arrival(reply: Any) -> int | Refusal:
    """Read a reply to an acquire whose waiters are served by arrival, or to a re-entry.

    Raises:
        ValueError: It is not such a reply.
    """
    if reply.__class__ is int and reply in _CODES:
        return _CODES[reply]
    left_ms, holder, *ahead = _words(reply, _BY_ARRIVAL)
    return Refusal(left_ms, holder, 0, *ahead)


def read_by_ticket(reply: Any) -> int | Refusal:
    """Read a reply to an acquire whose waiters are served by ticket.

    Raises:
        ValueError: It is not such a reply.
    """
    if reply.__class__ is int and reply in _CODES:
        return _CODES[reply]
    return Refusal(*_words(reply, _BY_TICKET))


def _words(reply: Any, shapes: tuple[list[type], list[type]]) -> list[Any]:
    if reply.__class__ is not list or [word.__class__ for word in reply] not in shapes:
        raise ValueError("the reply to an acquire is an integer, or the remaining time in ms and the holder")
    words: list[Any] = reply
    return words


def read_of_slots(
    reply: Any, wanted: int, permits: int, *, start: int | None, tells: bool
) -> SlotGrant | SlotRefusal | Refusal:
    """Read a reply to an acquire of slots.

    The node searched from `start`, None if the ask was for exact slots, and tells which slots are taken if `tells`.

    Raises:
        ValueError: It is not such a reply.
    """
    if reply.__class__ is int:
        if reply == 0:
            return FOREIGN
        # From 2 on, so that no reply to a release or a rollback is mistaken for a grant.
        if not 2 <= reply < 2 + permits or wanted != 1 or start is None or tells:
            raise ValueError("a grant tells how far from the start the slot is if the ask wanted one, and no more")
        return SlotGrant(((start + reply - 2) % permits,))
    if reply.__class__ is bytes and not tells and len(slots := read_slots(reply)) == wanted:
        return SlotGrant(slots)
    words = [word.__class__ for word in reply] if reply.__class__ is list else []
    if words != [int, bytes, int, int, bytes, int]:
        grant = _read_grant(reply, words, tells=tells)
        if len(grant.slots) != wanted or (tells and max(grant.slots) >= permits):
            raise ValueError("a grant names as many slots as the ask wanted, all below the limit")
        return grant
    left_ms, reason, ticket, ahead, detail, _ = reply
    if len(detail) > MOST_BYTES:
        raise ValueError("no semaphore has that many slots")
    if reason == OTHER_LIMIT:
        return SlotRefusal(left_ms, reason, ticket, ahead, limit=Limit.read(detail) if detail else None)
    return SlotRefusal(left_ms, reason, ticket, ahead, detail)


def _read_grant(reply: Any, words: list[type], *, tells: bool) -> SlotGrant:
    if not tells or words != [bytes, bytes] or len(reply[1]) > MOST_BYTES:
        raise ValueError("the reply to an acquire is slots, or the reason why there are none")
    return SlotGrant(read_slots(reply[0]), reply[1])


class Forced(NamedTuple):
    """One node's forced release; `had`: whether it kept such a claim."""

    had: bool


def read_forced(reply: Any) -> Forced | Refusal:
    """Read a reply to a forced release.

    Raises:
        ValueError: It is not such a reply.
    """
    if reply.__class__ is not int or reply not in (1, 0, -1):
        raise ValueError("the reply to a forced release is 1, 0 or -1")
    return FOREIGN if reply == -1 else Forced(reply == 1)
