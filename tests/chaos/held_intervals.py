"""Holds, put together from the lines of a history: when each was certainly believed, and how it ended."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tests.chaos.history import Line

Key: TypeAlias = tuple[int, int]
"""The identity of an acquisition: the worker, and when its acquire returned."""

_GIVEN = ("worker", "number", "name", "asked", "since", "owner", "mode", "token")


@dataclass(frozen=True, kw_only=True)
class Hold:
    """One acquisition, as its owner recorded it, and the fate of its process.

    Attributes:
        worker: The owner's number, counted over all processes of the run.
        number: The number of the owner's attempt.
        name: The acquired object, as "kind:name".
        asked: The instant the owner began to wait.
        since: The instant the client counted a quorum; belief begins here.
        granted: The instant acquire had returned.
        until: The last recorded `valid_until`.
        owner: The owner, as the client names it.
        mode: "read" or "write" for a read-write lock; empty for others.
        token: The fencing token; None if there is none.
        looks: The owner's observations of the hold while it worked.
        told: The calls of its `on_lost`.
        ended: The instant its owner began to release; None if it never did.
        kept: True if the hold was valid after that.
        written: The value that the counter was about to get; 0 if nothing was written.
        gone: "released"; "lost", if the release reported it; "lost inside", if another call did before; else None.
        killed_at: An instant just before its process was killed; None if it was not killed.
        history: The history file that it was read from.
    """

    worker: int
    number: int
    name: str
    asked: int
    since: int
    granted: int
    until: int
    owner: str = ""
    mode: str = ""
    token: int | None = None
    looks: Sequence[Line] = ()
    told: Sequence[Line] = ()
    ended: int | None = None
    kept: bool = False
    written: int = 0
    gone: str | None = None
    killed_at: int | None = None
    history: str = ""

    @property
    def key(self) -> Key:
        """The identity of this acquisition."""
        return self.worker, self.granted

    @property
    def read(self) -> int:
        """The counter as read under the hold; 0 if nothing was written."""
        return max(self.written - 1, 0)

    @property
    def believed_until(self) -> int:
        """The instant until which its owner certainly believed that it held.

        It is the earliest of these: its release began, its process was killed, its validity ended, it was lost. Only
        the library knows when exactly a hold was lost early, and reports it a moment later. But the hold was not lost
        yet when its owner last saw it valid.
        """
        ends = [end for end in (self.until, self.ended, self.killed_at) if end is not None]
        told_at = min((line["at"] for line in self.told), default=self.until)
        if told_at < self.until:
            seen = (look["before"] for look in self.looks if look["remaining"] > 0 and look["before"] < told_at)
            ends.append(max(seen, default=self.granted))
        return min(ends)

    @classmethod
    def of(cls, lines: Sequence[Line], killed_at: int | None = None, history: str = "") -> Hold | None:
        """Return the hold that the lines of one attempt describe; None if nothing was acquired."""
        by_event = {line["event"]: line for line in lines}
        acquired = by_event.get("acquired")
        if acquired is None:
            return None
        done: Line = by_event.get("done", {})
        end = by_event.get("released") or by_event.get("lost")
        given: Line = {field: acquired[field] for field in _GIVEN if field in acquired}
        return cls(
            **given,
            granted=acquired["at"],
            until=max(line.get("until", 0) for line in lines),
            looks=[line for line in lines if line["event"] == "looked"],
            told=[line for line in lines if line["event"] == "told"],
            ended=done.get("at"),
            kept=done.get("kept", False),
            written=by_event.get("writes", {}).get("value", 0),
            gone=None if end is None else end["event"] + (" inside" if end.get("inside") else ""),
            killed_at=killed_at if end is None else None,
            history=history,
        )

    def __str__(self) -> str:
        fate = self.gone or ("killed" if self.killed_at is not None else "unfinished")
        return (
            f"worker {self.worker}'s attempt {self.number} ({self.history}) held {self.name} from {self.granted:,}, "
            f"believing until {self.believed_until:,}, valid until {self.until:,}, {fate}"
        )


def holds_of(lines: Iterable[Line], killed_at: int | None = None, history: str = "") -> list[Hold]:
    """Return the holds in one process's history, in the order of their grants."""
    # `on_lost` may be called before the owner writes that the hold was granted, so collect the lines first.
    attempts: dict[tuple[int, int], list[Line]] = {}
    for line in lines:
        if "number" in line:
            attempts.setdefault((line["worker"], line["number"]), []).append(line)
    holds = (Hold.of(mine, killed_at, history) for mine in attempts.values())
    return sorted((hold for hold in holds if hold is not None), key=lambda hold: hold.granted)
