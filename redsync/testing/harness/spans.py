"""When were too few holds believed, although a quorum of nodes was healthy?

All instants are nanoseconds on the common clock, see `journal`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

__all__ = ["Span", "longest_gap", "shortages"]


class Span(NamedTuple):
    """A span of time."""

    since: int
    until: int

    @property
    def seconds(self) -> float:
        """Its length in seconds."""
        return (self.until - self.since) / 1e9


def shortages(beliefs: Iterable[Span], out: Sequence[Sequence[Span]], judged: Span, *, least: int = 1) -> list[Span]:
    """Return when fewer than `least` holds were believed although a quorum of nodes was healthy.

    `beliefs` has the span in which each hold was believed, and `out`, for each node, when it could not be counted on.
    """
    bearable = (len(out) - 1) // 2
    count, missing = 0, 0
    begun, found = judged.since, []
    # Merge a node's overlapping absences, so that it counts as absent once.
    absent = [span for each in out for span in _merge(each)]
    changes = [(at, by, 0) for at, by in _changes(beliefs)] + [(at, 0, by) for at, by in _changes(absent)]
    for at, believing, leaving in sorted(changes, key=lambda change: change[0]):
        was_short = count < least and missing <= bearable
        count, missing = count + believing, missing + leaving
        is_short = count < least and missing <= bearable
        if was_short and not is_short:
            found.append(Span(max(begun, judged.since), min(at, judged.until)))
        elif is_short and not was_short:
            begun = at
    if count < least and missing <= bearable:
        found.append(Span(max(begun, judged.since), judged.until))
    return [span for span in found if span.until > span.since]


def longest_gap(instants: Iterable[int], judged: Iterable[Span]) -> Span:
    """Return the longest part of these spans that contains none of the instants."""
    instants = sorted(instants)
    gaps = []
    for span in judged:
        ends = [span.since, *(at for at in instants if span.since < at < span.until), span.until]
        gaps += [Span(*gap) for gap in pairwise(ends)]
    return max(gaps, key=lambda gap: gap.seconds)


def _changes(spans: Iterable[Span]) -> list[tuple[int, int]]:
    return [change for span in spans for change in ((span.since, 1), (span.until, -1))]


def _merge(spans: Iterable[Span]) -> list[Span]:
    merged: list[Span] = []
    for span in sorted(spans):
        if merged and span.since <= merged[-1].until:
            merged[-1] = Span(merged[-1].since, max(merged[-1].until, span.until))
        else:
            merged.append(span)
    return merged
