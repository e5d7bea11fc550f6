"""What the checkers have in common: how they say what is wrong, and what they know of a slow machine.

A checker is a pure function of what owners wrote down. redsync's promises have conditions, and the checkers apply
exactly these: belief ends at `valid_until`, and a process that stands still can't be told anything. They excuse nothing
on suspicion: a standstill counts only if the process's pulse says so *and* it did not use the processor meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from redsync.testing.harness.journal import Line

__all__ = ["Stall", "Violation", "stalls_of", "waited"]

_BUSY: Final = 0.5
"""The share of a processor above which a process was neither stopped nor starved."""


class Violation(NamedTuple):
    """A promise that was broken.

    Attributes:
        promise: The promise, in a word or two.
        story: Who, when, and where it is written.
    """

    promise: str
    story: str

    def __str__(self) -> str:
        return f"{self.promise}: {self.story}"


class Stall(NamedTuple):
    """A time for which a process stood still."""

    since: int
    until: int


def stalls_of(lines: Iterable[Line]) -> list[Stall]:
    """Return when the process of that journal stood still through no fault of its own."""
    return [
        Stall(line["since"], line["at"])
        for line in lines
        if line["event"] == "stall" and line["cpu"] < _BUSY * (line["at"] - line["since"])
    ]


def waited(since: int, until: int, stalls: Sequence[Stall]) -> float:
    """Return how many seconds passed between two instants, not counting standstills of the process."""
    still = sum(max(min(stall.until, until) - max(stall.since, since), 0) for stall in stalls)
    return (until - since - still) / 1e9
