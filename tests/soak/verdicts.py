"""What the judges of the soak have in common: how they say what is wrong, and what they know of a slow machine.

A judge is a pure function of what the workers wrote down. What redsync promises has conditions, and the judges grant
exactly these: belief ends at `valid_until`, and who stands still can be told nothing. They grant nothing on suspicion:
that a process stood still counts only as far as its pulse says so *and* it did not use the processor meanwhile. A
process that was busy with itself has no excuse.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tests.soak.journal import Line

BUSY = 0.5  # of a processor: who used more than this was not stopped, and not starved


class Violation(NamedTuple):
    """A promise that was broken.

    Attributes:
        promise: Which, in a word or two.
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
        if line["event"] == "stall" and line["cpu"] < BUSY * (line["at"] - line["since"])
    ]


def waited(since: int, until: int, stalls: Sequence[Stall]) -> float:
    """Return how many seconds passed between two instants, without those in which the process stood still."""
    still = sum(max(min(stall.until, until) - max(stall.since, since), 0) for stall in stalls)
    return (until - since - still) / 1e9
