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

No slot from P on is granted any more. So once no node of a round has told such a slot, later rounds do not ask which
slots are taken.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from redsync._core.limits import MAX_PERMITS

__all__ = ["MOST_BYTES", "Taken"]

MOST_BYTES = -(-MAX_PERMITS // 8)
"""The length of the longest bit map of slots."""


class Taken:
    """The slots that others have, as nodes tell: one bit for each slot, in the order in which nodes keep them."""

    def __init__(self, told: Iterable[tuple[bytes, Iterable[int]]], own: Container[int] = ()) -> None:
        """Join the nodes' bit maps.

        Args:
            told: Each node's bit map, and the slots that it has granted to the asker.
            own: Slots in which no other permit can believe, because a quorum has granted them to the asker.
        """
        told = list(told)
        self._width = 8 * max((len(bits) for bits, _ in told), default=0)
        self._bits = 0
        for bits, slots in told:
            number = int.from_bytes(bits, "big") << (self._width - 8 * len(bits))
            self._bits |= number & ~sum(1 << (self._width - 1 - slot) for slot in slots if slot < self._width)
        self._own = own

    def __contains__(self, slot: int) -> bool:
        return slot < self._width and slot not in self._own and bool(self._bits >> (self._width - 1 - slot) & 1)

    def beyond(self, permits: int) -> int:
        """Return how many slots are taken beyond a limit."""
        return (self._bits & ((1 << max(self._width - permits, 0)) - 1)).bit_count()

    def reserved(self, permits: int) -> frozenset[int]:
        """Return the slots below a limit that are reserved for those beyond it."""
        missing = self.beyond(permits)
        found = set()
        slot = permits
        while missing and slot:
            slot -= 1
            if slot not in self:
                found.add(slot)
                missing -= 1
        return frozenset(found)
