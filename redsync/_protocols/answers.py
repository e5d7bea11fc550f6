"""Answers: what nodes reply to an acquire. Each reply is read once, on arrival. Grants are true, refusals false."""

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
"""Why a node refuses slots: there is no room, others have some of the requested slots, the limit is another one."""


class Refusal(NamedTuple):
    """A node refuses a lock.

    Attributes:
        left_ms: Milliseconds for which the node keeps the holder's claim; -1 if that has no end, or is not known.
        holder: That claim, or the claim of the waiter whose turn it is; "readers" or "writers" for many.
        ticket: The asker's ticket, or the highest ticket of the queue if it has none; 0 in a queue by arrival.
        ahead: How many wait before the asker; -1 if it has no place.
    """

    left_ms: int
    holder: bytes
    ticket: int = 0
    ahead: int = -1

    def __bool__(self) -> bool:
        return False


FOREIGN = Refusal(-1, b"")
"""The key holds a value of another type. That counts as one more owner: it keeps the lock away as well."""


class SlotRefusal(NamedTuple):
    """A node refuses slots.

    Attributes:
        left_ms: Milliseconds until enough of them run out; -1 if that is not known.
        reason: `FULL`, `TAKEN` or `OTHER_LIMIT`.
        ticket: The highest ticket in the node's line.
        ahead: How many wait before the asker, or how many slots those want.
        taken: Bit map of the slots taken on the node, if the reason is `TAKEN`.
        limit: The limit that the node knows, if the reason is `OTHER_LIMIT` and it knows any.
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
        ValueError: It is not one.
    """
    if reply.__class__ is int and reply in _CODES:
        return _CODES[reply]
    left_ms, holder, *ahead = _words(reply, _BY_ARRIVAL)
    return Refusal(left_ms, holder, 0, *ahead)


def read_by_ticket(reply: Any) -> int | Refusal:
    """Read a reply to an acquire whose waiters are served by ticket.

    Raises:
        ValueError: It is not one.
    """
    if reply.__class__ is int and reply in _CODES:
        return _CODES[reply]
    return Refusal(*_words(reply, _BY_TICKET))


def _words(reply: Any, shapes: tuple[list[type], list[type]]) -> list[Any]:
    if reply.__class__ is not list or [word.__class__ for word in reply] not in shapes:
        raise ValueError("an acquire is answered by an integer, or by the remaining time in ms and the holder")
    words: list[Any] = reply
    return words


def read_of_slots(reply: Any, wanted: int, permits: int, *, tells: bool) -> SlotGrant | SlotRefusal | Refusal:
    """Read a reply to an acquire of slots.

    Args:
        reply: The reply.
        wanted: How many were asked for.
        permits: The limit.
        tells: Whether the ask wanted to know which slots are taken.

    Raises:
        ValueError: It is not one.
    """
    if reply.__class__ is bytes and not tells and len(slots := read_slots(reply)) == wanted:
        return SlotGrant(slots)
    if reply.__class__ is int and reply == 0:
        return FOREIGN
    words = [word.__class__ for word in reply] if reply.__class__ is list else []
    if words != [int, bytes, int, int, bytes, int]:
        grant = _read_grant(reply, words, tells=tells)
        if len(grant.slots) != wanted or (tells and max(grant.slots) >= permits):
            raise ValueError("a grant names as many slots as were wanted, all of them below the limit")
        return grant
    left_ms, reason, ticket, ahead, detail, _ = reply
    if len(detail) > MOST_BYTES:
        raise ValueError("no semaphore has so many slots")
    if reason == OTHER_LIMIT:
        return SlotRefusal(left_ms, reason, ticket, ahead, limit=Limit.read(detail) if detail else None)
    return SlotRefusal(left_ms, reason, ticket, ahead, detail)


def _read_grant(reply: Any, words: list[type], *, tells: bool) -> SlotGrant:
    if not tells or words != [bytes, bytes] or len(reply[1]) > MOST_BYTES:
        raise ValueError("an acquire is answered by slots, or by the reason why there are none")
    return SlotGrant(read_slots(reply[0]), reply[1])


class Forced(NamedTuple):
    """A node performed a forced release; `had`: whether it kept such a claim."""

    had: bool


def read_forced(reply: Any) -> Forced | Refusal:
    """Read a reply to a forced release.

    Raises:
        ValueError: It is not one.
    """
    if reply.__class__ is not int or reply not in (1, 0, -1):
        raise ValueError("a forced release is answered by 1, 0 or -1")
    return FOREIGN if reply == -1 else Forced(reply == 1)
