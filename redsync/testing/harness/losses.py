"""Was each loss reported in time, once and correctly, and did holds never lie about themselves?

A hold that ends before its release must be reported as lost at its `valid_until`, or as soon as the process continues.
A hold's reports of itself, `lost` and `remaining()`, are exact at any instant, and a lost hold never comes back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from redsync.testing.harness.holds import Hold
from redsync.testing.harness.journal import Line
from redsync.testing.harness.verdicts import Stall, Violation, waited

__all__ = ["SLACK", "judge_hearing", "judge_losses"]

SLACK: Final = 1.2
"""Seconds within which a process without stalls has certainly reported a loss."""

_GRAIN: Final = 2_000
"""Nanoseconds by which two readings of the clock may disagree, as one is a float of rounded seconds."""


def judge_losses(holds: Sequence[Hold], stalls: Sequence[Stall]) -> list[Violation]:
    """Return the losses that one process did not report, or reported wrongly."""
    return [
        Violation(promise, f"{hold}: {story}")
        for hold in holds
        for promise, story in (*_untold(hold, stalls), *_lies(hold, stalls))
    ]


def judge_hearing(lines: Sequence[Line], killed_at: int | None) -> list[Violation]:
    """Return a violation if listeners and `on_lost` of one process saw different numbers of losses."""
    told, heard = (sum(line["event"] == event for line in lines) for event in ("told", "heard"))
    # They are called one after the other, so a kill may come in between, for each thread that reports.
    if told == heard or (killed_at is not None and heard < told <= heard + 3):
        return []
    return [Violation("loss not told", f"on_lost was called {told} times, but there were {heard} HoldLost events")]


def _untold(hold: Hold, stalls: Sequence[Stall]) -> Iterator[tuple[str, str]]:
    if len(hold.told) > 1:
        yield "loss told twice", f"at {[line['at'] for line in hold.told]}"
    if hold.told and hold.gone == "released":
        yield "loss told wrongly", "it was reported lost and then released without an error"
    if any(not line["lost"] or line["remaining"] for line in hold.told):
        yield "loss told wrongly", f"in its own callback it was {hold.told}"
    told_at = hold.told[0]["at"] if hold.told else None
    # A hold that was valid at the end of the work may turn out lost only in its release, whose error reports it.
    must_be_told = hold.gone == "lost inside" or (hold.gone is not None and not hold.kept)
    if told_at is None and must_be_told:
        yield "loss not told", "no callback was called"
    known_at = told_at or hold.ended
    if known_at is not None and (late := waited(hold.until, known_at, stalls)) > SLACK:
        yield (
            "loss told late",
            f"{late:.3f} s after its validity, not counting stalls of the process",
        )


def _lies(hold: Hold, stalls: Sequence[Stall]) -> Iterator[tuple[str, str]]:
    lost_at = None
    told_at = hold.told[0]["at"] if hold.told else None
    for look in hold.looks:
        says_valid = look["remaining"] > 0 or not look["lost"]
        if lost_at is not None and says_valid:
            yield "lost hold came back", f"lost at {lost_at}, then {look}"
        if look["remaining"] > 0:
            # It was computed at some instant of the look, from one of the ends that the hold had meanwhile.
            if (
                not look["since"] - look["after"] - _GRAIN
                <= look["remaining"]
                <= look["until"] - look["before"] + _GRAIN
            ):
                yield "hold lied", f"about its remaining time: {look}"
        elif not look["lost"]:
            yield "hold lied", f"nothing remained, but it was not lost: {look}"
        if look["before"] >= look["until"] + _GRAIN and says_valid:
            yield "hold lied", f"its time was over: {look}"
        if look["lost"]:
            lost_at = lost_at or look["after"]
    if lost_at is not None and lost_at < hold.until - _GRAIN and hold.gone is not None:
        # Lost before its time: the code that decides so reports it at once.
        if told_at is None:
            yield "loss not told", f"lost at {lost_at}, before its time, but no callback was called"
        elif waited(lost_at, told_at, stalls) > SLACK:
            yield "loss told late", f"lost at {lost_at}, told at {told_at}"
