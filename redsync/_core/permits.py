"""Permits: holds of slots of a semaphore; the nodes' spelling of slots, and their grants."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Self

from redsync._core.effects import Command
from redsync._core.holds import HoldState, Renewal
from redsync._core.limits import Limit
from redsync._core.prepared import Prepared
from redsync._core.quorum import Choice, Tally, Votes

__all__ = ["PermitState", "SlotGrant", "mismatched", "read_slots", "write_slots"]


def read_slots(text: bytes) -> tuple[int, ...]:
    """Return the slots that a node names.

    Raises:
        ValueError: The text is not a list of slots.
    """
    if text.isdigit() and b"%d" % (slot := int(text)) == text:
        return (slot,)
    slots = tuple(map(int, text.split(b",")))
    if write_slots(slots) != text or len(set(slots)) < len(slots) or min(slots) < 0:
        raise ValueError(f"{text!r:.80} is not a list of slots")
    return slots


def write_slots(slots: Iterable[int]) -> bytes:
    """Return slots as nodes keep them."""
    return b",".join(b"%d" % slot for slot in slots)


class SlotGrant(NamedTuple):
    """One node's grant of slots.

    Attributes:
        slots: The slots that it granted.
        taken: Bit map of all slots taken on the node, if the ask wanted it.
    """

    slots: tuple[int, ...]
    taken: bytes = b""


def mismatched(votes: Votes, slots: Iterable[int]) -> int:
    """Return the bit set of the nodes that answered, but did not grant exactly these slots."""
    ours = set(slots)
    return sum(
        1 << i
        for i, (choice, answer) in enumerate(zip(votes.choices, votes.answers, strict=True))
        if choice is Choice.REFUSED or (choice is Choice.GRANTED and set(answer.slots) != ours)
    )


def _version(limit: Limit) -> int:
    return limit.version


class PermitState(HoldState):
    """One permit: a hold of slots, of which the first `count` are not yet released.

    Attributes:
        slots: Its slots.
        limit: The client's view of its semaphore's limit.
    """

    __slots__ = ("limit", "slots")

    what = "permit"

    def grant(self, slots: tuple[int, ...], limit: Limit) -> None:
        """Record the slots that were won, and under which limit."""
        self.slots, self.limit = slots, limit

    def release_command(self, prepared: Prepared) -> Command:
        if not self.count:
            self.limit.released.append(self.slots[0])
        return super().release_command(prepared)

    @property
    def rest(self) -> bytes:
        """The slots that remain, as an argument of a release."""
        return write_slots(self.slots[: self.count])

    def mismatched(self, votes: Votes) -> int:
        """Return the bit set of the nodes that answered, but did not grant exactly these slots.

        There a renewal must exchange the slots, or end a place in the line.
        """
        return mismatched(votes, self.slots)

    def mismatched_in(self, tally: Tally | None) -> int:
        """Return the result of `mismatched` for all votes of a round, late ones included; 0 without a round."""
        return 0 if tally is None else self.mismatched(tally.all_votes)

    @classmethod
    def renewal_of(cls, holds: Sequence[Self], leases_ms: Sequence[int]) -> Renewal:
        # Many permits may belong to one semaphore: send its keys once, with the newest limit that any of them knows.
        numbers: dict[bytes, int] = {}
        limits: list[list[Limit]] = []
        keys: list[bytes] = []
        args: list[bytes | int] = []
        for state, lease_ms in zip(holds, leases_ms, strict=True):
            number = numbers.setdefault(state.keys.lock, len(numbers) + 1)
            if number > len(limits):
                limits.append([])
                keys += state.keys.held
            limits[number - 1].append(state.limit)
            args += (number, state.claim, state.rest, lease_ms)
        newest = (max(known, key=_version).text for known in limits)
        return Renewal(tuple(keys), (*args, *newest), limits)

    @classmethod
    def marks_of(cls, holds: Sequence[Self]) -> list[Any]:
        return [(state.count, state.limit.version, state.limit.permits) for state in holds]

    def enlist(self, permits: dict[bytes, dict[HoldState, None]]) -> None:
        permits.setdefault(self.keys.lock, {})[self] = None

    def delist(self, permits: dict[bytes, dict[HoldState, None]]) -> None:
        if (ours := permits.get(self.keys.lock)) is not None:
            ours.pop(self, None)
            if not ours:
                permits.pop(self.keys.lock, None)
