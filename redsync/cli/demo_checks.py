"""The demo's judges: pure functions over what the workers left behind.

Each judge has a witness of its own, so that a broken lock must deceive all of them at once:

- `interval_overlaps` trusts the machine's clock: two workers that believed to hold one lock at the same instant.
- `ledger_overlaps` trusts the order of appends to a file, and no clock: two sections that are not one after the other.
- `lost_updates` trusts nothing but the values that workers read and wrote: an increment that somebody overwrote.

What redsync does not promise is no violation: a hold that was lost ends at its `valid_until`, and work that its worker
did later than that is the worker's own fault. The workers look before they write, but between look and write there is
time for the operating system to suspend them, so the judges know what such a late write can do, and only that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TypeAlias, TypeVar

from redsync.cli.demo_ledger import Attempt, Entry

__all__ = [
    "Pair",
    "by_name",
    "handovers",
    "interval_overlaps",
    "ledger_overlaps",
    "longest_pause",
    "lost_updates",
    "percentile",
    "zombies",
]

Key: TypeAlias = tuple[int, int]
Pair: TypeAlias = tuple[Key, Key]
"""Two acquisitions, each as worker and instant of its grant; the smaller first, so that a pair is found once."""

T = TypeVar("T")

_CLAIMS = (b"redsync:", b"redsync_queue:", b"redsync_places:")
_RECORDS = b"redsync:client:"


def by_name(attempts: Iterable[Attempt]) -> dict[int, list[Attempt]]:
    """Return the attempts that were granted, by lock, each list in the order of the grants."""
    groups: dict[int, list[Attempt]] = {}
    for attempt in sorted((attempt for attempt in attempts if attempt.granted), key=lambda attempt: attempt.granted):
        groups.setdefault(attempt.name, []).append(attempt)
    return groups


def interval_overlaps(acquisitions: Iterable[Attempt]) -> set[Pair]:
    """Return the acquisitions of one lock that two workers believed to have at the same instant.

    Intervals are half open: the next one may begin at the very instant at which the last one ended.
    """
    pairs: set[Pair] = set()
    open_ones: list[Attempt] = []
    for attempt in sorted(acquisitions, key=lambda attempt: attempt.granted):
        if attempt.ended <= attempt.granted:
            continue  # Over before its worker came to look: it never believed.
        open_ones = [other for other in open_ones if other.ended > attempt.granted]
        pairs.update(_pair(other.key, attempt.key) for other in open_ones)
        open_ones.append(attempt)
    return pairs


def ledger_overlaps(entries: Iterable[Entry], lost: Collection[Key] = ()) -> set[Pair]:
    """Return the acquisitions of one lock whose sections are not one after the other in the ledger.

    Either one began between the other's `BEGIN` and `END`, or both have the same number: then neither saw the other.

    Args:
        entries: The ledger.
        lost: The acquisitions whose hold was lost; they may have written later than they should.
    """
    pairs: set[Pair] = set()
    open_ones: list[Key] = []
    numbered: dict[int, Key] = {}
    for entry in entries:
        key = entry.key
        if key in lost:
            continue
        if entry.kind == "BEGIN":
            pairs.update(_pair(other, key) for other in open_ones)
            open_ones.append(key)
            if numbered.setdefault(entry.number, key) != key:
                pairs.add(_pair(numbered[entry.number], key))
        elif key in open_ones:
            open_ones.remove(key)
    return pairs


def _pair(one: Key, other: Key) -> Pair:
    return (one, other) if one <= other else (other, one)


def lost_updates(acquisitions: Iterable[Attempt], counter: int) -> int:
    """Return how many increments of one lock's counter were lost, or appeared from nowhere.

    Each worker must have read what the one before it wrote, and the counter must show what the last one wrote; if all
    did, the counter is the number of increments. A difference counts unless a *late* write explains it, one of a worker
    that found its hold lost afterwards: the value that was read must be exactly what the late one wrote.

    Args:
        acquisitions: Those of this lock.
        counter: The counter at the end.
    """
    ordered = sorted((attempt for attempt in acquisitions if attempt.written), key=lambda attempt: attempt.granted)
    late = {attempt.written for attempt in ordered if not attempt.kept}
    kept = [attempt for attempt in ordered if attempt.kept]
    wrote = [0, *(attempt.written for attempt in kept)]
    found = [*(attempt.read for attempt in kept), counter]
    return sum(abs(value - there) for value, there in zip(wrote, found, strict=True) if there not in late)


def handovers(acquisitions: Sequence[Attempt]) -> int:
    """Return how often one lock went to another worker than the one before.

    Args:
        acquisitions: Those of this lock, in the order of their grants.
    """
    return sum(one.worker != other.worker for one, other in pairwise(acquisitions))


def longest_pause(acquisitions: Sequence[Attempt]) -> int:
    """Return the longest time in ns from the end of an acquisition of one lock to the next grant.

    Args:
        acquisitions: Those of this lock, in the order of their grants.
    """
    return max((other.granted - one.ended for one, other in pairwise(acquisitions)), default=0)


def percentile(values: Collection[int], share: float) -> int:
    """Return the smallest of the values that at least that share of them does not exceed; 0 if there are none."""
    if not values:
        return 0
    return sorted(values)[max(math.ceil(share * len(values)), 1) - 1]


def zombies(
    scan: Callable[[], Mapping[T, Collection[bytes]]],
    patience: float,
    clock: Callable[[], float],
    rest: Callable[[], None],
) -> dict[T, list[bytes]]:
    """Return the claims and places that are still on the nodes although nobody holds or waits, by node.

    A command that was under way may need a moment, so a key counts only if it outlasts the patience. The record in
    which a client says who it is is no claim.

    Args:
        scan: Returns the keys of every node.
        patience: For how many seconds to look again while there are any.
        clock: Returns the seconds on any clock.
        rest: Sleeps a little between two looks.
    """
    deadline = clock() + patience
    while True:
        at = clock()
        left = {
            node: sorted(key for key in keys if key.startswith(_CLAIMS) and not key.startswith(_RECORDS))
            for node, keys in scan().items()
        }
        found = {node: keys for node, keys in left.items() if keys}
        if not found or at >= deadline:
            return found
        rest()
