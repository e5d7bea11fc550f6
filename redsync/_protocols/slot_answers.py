"""Slot answers: nodes' replies to an acquire of slots, each read once, on arrival; see `answers`."""

from __future__ import annotations

from typing import Any, NamedTuple

from redsync._core.limits import Limit
from redsync._core.permits import SlotGrant, read_slots
from redsync._protocols.answers import FOREIGN, Refusal
from redsync._protocols.shrinking import MOST_BYTES

__all__ = ["FULL", "OTHER_LIMIT", "TAKEN", "SlotRefusal", "read_of_slots"]

FULL, TAKEN, OTHER_LIMIT = b"full", b"taken", b"limit"
"""Reasons of a node that refuses slots: no room, others have some of the requested slots, another limit."""


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


def read_of_slots(
    reply: Any, wanted: int, permits: int, *, start: int | None, tells: bool
) -> SlotGrant | SlotRefusal | Refusal:
    """Read a reply to an acquire of slots.

    Args:
        reply: The reply.
        wanted: The number of slots that the ask wanted.
        permits: The limit.
        start: The slot from which the node searched; None if the ask was for exact slots.
        tells: True if the ask wanted to know which slots are taken.

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
