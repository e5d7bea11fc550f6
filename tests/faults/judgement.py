"""What is found in the notes of processes that hammered one synchronizer: who believed at once, who had to do without.

Each function has a test of its own that shows that it finds what it is to find.
"""

import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

NODES, QUORUM = 5, 3


class Span(NamedTuple):
    """Some time, in seconds on the common clock."""

    since: float
    until: float

    @property
    def length(self) -> float:
        return self.until - self.since


class Belief(NamedTuple):
    """From when until when somebody believed to hold.

    Attributes:
        since: The instant at which the library counted a quorum.
        until: When the belief ended.
        owner: Whose it was.
        mode: Of a read-write lock: "read" or "write".
        token: Of a fenced lock.
    """

    since: float
    until: float
    owner: str = ""
    mode: str = ""
    token: int = 0


# Safety.


def most_at_once(spans: Iterable[Span | Belief]) -> tuple[int, float]:
    """Return how many of the spans had an instant in common at most, and when."""
    lasting = [span for span in spans if span.until > span.since]
    # Ends first: who takes what is given back at this very instant is not with the one who gave it.
    changes = sorted(_changes(lasting), key=lambda change: (change[0], change[1]))
    counts = itertools.accumulate(by for _, by in changes)
    most, (at, _) = max(zip(counts, changes, strict=True), key=lambda level: level[0])
    return most, at


def intrusions(beliefs: Iterable[Belief]) -> list[tuple[Belief, Belief]]:
    """Return the pairs of different owners that believed at once, at least one of them to write."""
    found: list[tuple[Belief, Belief]] = []
    present: list[Belief] = []
    for belief in sorted(belief for belief in beliefs if belief.until > belief.since):
        present = [other for other in present if other.until > belief.since]
        found += [
            (other, belief) for other in present if other.owner != belief.owner and "write" in (other.mode, belief.mode)
        ]
        present.append(belief)
    return found


def disorder(beliefs: Iterable[Belief]) -> list[tuple[Belief, Belief]]:
    """Return the pairs of one and the next acquisition whose token is not higher than all before it."""
    found = []
    highest = None
    for belief in sorted(beliefs):
        if highest is not None and belief.token <= highest.token:
            found.append((highest, belief))
        if highest is None or belief.token > highest.token:
            highest = belief
    return found


# Availability.


def shortages(
    spans: Iterable[Span | Belief], out: Sequence[Sequence[Span]], since: float, until: float, *, least: int = 1
) -> list[Span]:
    """Return when fewer than so many believed although a quorum of nodes was whole.

    Args:
        spans: When each one believed.
        out: For each node, when it could not be counted on.
        since: From when it is judged.
        until: Until when.
        least: How many should.
    """
    count, missing = 0, 0
    begun, found = since, []
    # One node may have overlapping absences: of these it has one at a time.
    merged = [span for each in out for span in _merge(each)]
    changes = [(at, "belief", by) for at, by in _changes(spans)] + [(at, "node", by) for at, by in _changes(merged)]
    for at, what, by in sorted(changes, key=lambda change: change[0]):
        was_short = count < least and NODES - missing >= QUORUM
        count, missing = (count + by, missing) if what == "belief" else (count, missing + by)
        is_short = count < least and NODES - missing >= QUORUM
        if was_short and not is_short:
            found.append(Span(max(begun, since), min(at, until)))
        elif is_short and not was_short:
            begun = at
    if count < least and NODES - missing >= QUORUM:
        found.append(Span(max(begun, since), until))
    return [span for span in found if span.until > span.since]


def longest_gap(instants: Iterable[float], judged: Iterable[Span]) -> Span:
    """Return the longest part of these spans in which none of the instants lies."""
    instants = sorted(instants)
    gaps = []
    for span in judged:
        ends = [span.since, *(at for at in instants if span.since < at < span.until), span.until]
        gaps += [Span(*gap) for gap in itertools.pairwise(ends)]
    return max(gaps, key=lambda gap: gap.length)


def _changes(spans: Iterable[Span | Belief]) -> list[tuple[float, int]]:
    return [change for span in spans for change in ((span.since, 1), (span.until, -1))]


def _merge(spans: Iterable[Span]) -> list[Span]:
    merged: list[Span] = []
    for span in sorted(spans):
        if merged and span.since <= merged[-1].until:
            merged[-1] = Span(merged[-1].since, max(merged[-1].until, span.until))
        else:
            merged.append(span)
    return merged
