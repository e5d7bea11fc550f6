"""Shrinking: after a limit was lowered, how a new permit leaves room for those whose slots lie beyond the new limit.

The promise: *at any instant at most as many permits are believed as the limit of the newest version under which any of
them was granted.* So a shrink takes no permit away, and yet no owner gets a permit beyond that limit.

Slots below the limit P do no harm, because each of them has at most one permit. A permit with a slot from P on,
granted under an older version, counts in addition. It is not enough that each node counts the permits that it knows:
three permits may live on nodes A and B, B and C, C and A. Each node knows two of them and sees room for a third of
three.

So a node that grants also tells which slots are taken there. Let U be all slots that the granting nodes tell, except
those of the asker. For each slot in U from P on, one slot below P is *reserved*: the highest that is free in U. A
permit wins no reserved slot. If all free slots are reserved, there is no room.

Proof. Let X be believed when Y is granted. A node of Y's quorum told X's slot: else the same quorum could have granted
that very slot to Y, and then two would believe in one slot. So U holds the slots of all permits believed then. Let D(U)
be the slots of U below P and those reserved. One more slot in U puts one more slot into D(U) and takes none out: a
slot from P on reserves the next free one; a slot below P is in D itself, and if it was reserved, the next free one is
reserved instead. So D(U) contains D(V) for any V within U. At an instant let v be the newest version of all that is
believed, with limit P; N the slots granted under v, O those granted under older versions. A node that has granted under
v no longer grants under an older one, so on a node that two of them share, O came first. So each slot of O that
is believed now was there when each of N was granted, and none of N lies in D(O). D(O) has as many slots below P as O
has slots, or is all of them. In the first case N has at most P less these. In the second N is empty, and v is not the
newest version. So N and O together have at most P. Lost memory changes nothing: a node that forgot takes part in no
grant until what it forgot is no longer believed.
"""

from __future__ import annotations

from collections.abc import Iterable

from redsync._core.permits import MAX_PERMITS

__all__ = ["MOST_BYTES", "bits_of", "first_in", "read_bits", "reserved"]

MOST_BYTES = -(-MAX_PERMITS // 8)
"""The length of the longest bit map of slots."""

_MIRRORED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))


def read_bits(text: bytes) -> int:
    """Return a node's bit map, which begins with slot 0, as a number whose bit n stands for slot n.

    Raises:
        ValueError: No semaphore has that many slots.
    """
    if len(text) > MOST_BYTES:
        raise ValueError("no semaphore has that many slots")
    return int.from_bytes(text.translate(_MIRRORED), "little")


def bits_of(slots: Iterable[int]) -> int:
    """Return slots as such a number; a slot of absurd size, which a broken node names, is left out."""
    return sum(1 << slot for slot in slots if slot < MAX_PERMITS)


def reserved(taken: int, permits: int) -> int:
    """Return the slots below a limit that are reserved for those beyond it; `taken`: the slots that others have."""
    missing = (taken >> permits).bit_count()
    free = ~taken & ((1 << permits) - 1)
    found = 0
    while missing and free:
        highest = 1 << (free.bit_length() - 1)
        found, free, missing = found | highest, free ^ highest, missing - 1
    return found


def first_in(slots: int, start: int, most: int) -> list[int]:
    """Return the first of these slots from `start` on, cyclically, up to that many."""
    ahead = slots >> start << start
    found: list[int] = []
    for part in (ahead, slots ^ ahead):
        left = part
        while left and len(found) < most:
            lowest = left & -left
            found.append(lowest.bit_length() - 1)
            left ^= lowest
    return found
