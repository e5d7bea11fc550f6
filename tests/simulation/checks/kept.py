"""The records that a node keeps: claims of all kinds, and places in queues. For several checkers."""

import math
from typing import NamedTuple, TypeVar

from redsync.testing.simulator.store import NEVER, Hash, SortedSet
from tests.simulation.checks.rounds import MODES, owner_in
from tests.simulation.trial_nodes import TrialNode

T = TypeVar("T")

_UNITS = 1024
"""Each hold of a read-write lock beyond the first adds one 1024th to the score."""


class Kept(NamedTuple):
    """One claim that a node keeps.

    Attributes:
        id: Its name on the node.
        mode: As for `Claim`.
        holds: Its hold count; 1 for claims without a count.
        until_ms: The first millisecond of the node's clock at which the claim is no longer kept; infinity if it never
            expires.
    """

    id: bytes
    mode: bytes
    holds: int
    until_ms: float

    @property
    def owner(self) -> bytes:
        """Its owner, as queues name it."""
        return owner_in(self.id)


def now_ms(node: TrialNode) -> int:
    """Return the present time as a script on the node would see it."""
    return round(node.clock.now() * 1_000_000) // 1000


def kept_at(node: TrialNode, key: bytes, kind: type[T]) -> T:
    """Return the value that a node keeps at a key; an empty one if it keeps none of that kind."""
    found = node.store.peek(key)
    return found[0] if found is not None and isinstance(found[0], kind) else kind()


def kept_claims(node: TrialNode, key: bytes) -> list[Kept]:
    """Return the claims that a node keeps at a key, without those that have expired."""
    found = node.store.look(key)
    if found is None:
        return []
    entry, now = found
    value = entry.value
    if isinstance(value, SortedSet):
        claims = [_read(member, score) for member, score in value.items()]
        return [claim for claim in claims if claim.until_ms > now]
    # A lock is a hash of claims, a mutex the claim itself. A key still exists in its last millisecond.
    until_ms = math.inf if entry.expires == NEVER else entry.expires + 1
    counts = value.items() if isinstance(value, Hash) else [(value, b"1")]
    return [Kept(claim, b"", int(count), until_ms) for claim, count in counts]


def kept_places(node: TrialNode, queue: bytes, places: bytes) -> list[bytes]:
    """Return the owners that have a place, not yet ended, in the queue at these keys."""
    if node.store.peek(queue) is None:
        return []
    now = now_ms(node)
    return [owner for owner, place in kept_at(node, places, Hash).items() if int(place.split()[0]) > now]


def _read(member: bytes, score: float) -> Kept:
    """Read a member of a sorted set: a permit, or a claim of a read-write lock."""
    mode = member[:2]
    if mode not in MODES:
        return Kept(member, b"", 1, score)
    until_ms = math.floor(abs(score))
    return Kept(member[2:], mode, round((abs(score) - until_ms) * _UNITS) + 1, until_ms)
