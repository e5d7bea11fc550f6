"""Shared by the checkers: how they report violations, and how they account for a slow machine.

A checker is a pure function of what owners recorded. redsync's promises have conditions, and the checkers apply exactly
these: belief ends at `valid_until`, and a stalled process can't learn anything. They excuse nothing on
suspicion: a stall counts only if the process's pulse says so *and* it did not use the processor meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from redsync.testing.harness.journal import Line

__all__ = ["Stall", "Violation", "stalls_of", "waited"]

_BUSY: Final = 0.5
"""The share of a processor above which a process was neither stopped nor starved."""


class Violation(NamedTuple):
    """A broken promise.

    Attributes:
        promise: The promise, in a word or two.
        story: The owners, the times, and the journals with the details.
    """

    promise: str
    story: str

    def __str__(self) -> str:
        return f"{self.promise}: {self.story}"


class Stall(NamedTuple):
    """A time for which a process was paused or starved."""

    since: int
    until: int


def stalls_of(lines: Iterable[Line]) -> list[Stall]:
    """Return the stalls of a journal's process that it did not cause itself."""
    return [
        Stall(line["since"], line["at"])
        for line in lines
        if line["event"] == "stall" and line["cpu"] < _BUSY * (line["at"] - line["since"])
    ]


def waited(since: int, until: int, stalls: Sequence[Stall]) -> float:
    """Return how many seconds passed between two instants, not counting stalls of the process."""
    still = sum(max(min(stall.until, until) - max(stall.since, since), 0) for stall in stalls)
    return (until - since - still) / 1e9
