"""What clients write down while they work, and the holds that this amounts to.

A journal is one file per process, a line of JSON per event, each by a single write to a file that only ever grows. So a
process may be killed at any time: what it had written stays, and at most the last line is cut short.

All instants are whole nanoseconds on the clock of the leases, which all processes of the machine share.
"""

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from redsync.cli.demo_ledger import HELD, Attempt, now_ns

Line = dict[str, Any]

OF_HOLDS = frozenset(("grant", "look", "write", "end", "gone"))
"""The events that are told by a `Hold` as a whole."""


def nanoseconds(instant: float) -> int:
    """Return an instant of redsync's as ours, rounded down: nobody shall seem to believe for longer than he did."""
    return int(instant * 1e9)


class Journal:
    """Writes the journal of this process; from any thread."""

    def __init__(self, path: Path):
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def note(self, event: str, **fields: object):
        """Append one event; its instant `at` is now, unless it is given."""
        os.write(self._file, (json.dumps({"event": event, "at": now_ns(), **fields}) + "\n").encode())


def read(path: Path) -> list[Line]:
    """Return the whole lines of a journal; none if its process never came to write."""
    if not path.exists():
        return []
    lines, _, _ = path.read_bytes().rpartition(b"\n")
    return [json.loads(line) for line in lines.splitlines()]


@dataclass
class Hold:
    """One hold of a lock: what its worker wrote down, and what is known of its process.

    Attributes:
        worker: Who held, counted over all processes of the run.
        number: The worker's how-many-th attempt it was.
        name: The lock.
        asked: When it began to wait.
        granted: When its acquire had returned.
        lease: The lease it was taken with, in seconds; None for one that is renewed.
        until: The last `valid_until` that was written down.
        looks: What the worker saw of the hold while it worked.
        told: The calls of its `on_lost`.
        ended: When its worker had done with it and was about to release; None if it never came to that.
        kept: Whether the hold was valid after that.
        read: The counter as it was read under the hold.
        written: What the counter was about to be set to; 0 if nothing was written.
        gone: "released"; "lost", if leaving the hold said so; "lost inside", if something else did before.
        killed_at: An instant just before its process was killed, None if it was not.
        journal: The file that tells of it.
    """

    worker: int
    number: int
    name: str
    asked: int
    granted: int
    until: int
    lease: float | None = None
    looks: list[Line] = field(default_factory=list)
    told: list[Line] = field(default_factory=list)
    ended: int | None = None
    kept: bool = False
    read: int = 0
    written: int = 0
    gone: str | None = None
    killed_at: int | None = None
    journal: str = ""

    @property
    def believed_until(self) -> int:
        """Until when its owner certainly believed to hold.

        That is until its release began, it was killed, its validity ended, or it was lost before that. When exactly a
        hold was lost early, only the library knows: it is told a moment later. But it was not lost yet when the worker
        last saw it valid.
        """
        ends = [end for end in (self.until, self.ended, self.killed_at) if end is not None]
        told_at = min((line["at"] for line in self.told), default=self.until)
        if told_at < self.until:
            seen = (look["before"] for look in self.looks if look["remaining"] > 0 and look["before"] < told_at)
            ends.append(max(seen, default=self.granted))
        return min(ends)

    def attempt(self) -> Attempt:
        """Return the hold as the judges of the demo know it; they have one lock before them at a time."""
        ended = max(self.believed_until, self.granted)
        return Attempt(
            HELD,
            0,
            self.worker,
            self.asked,
            self.granted,
            ended,
            kept=int(self.kept),
            read=self.read,
            written=self.written,
        )

    def __str__(self) -> str:
        fate = self.gone or ("killed" if self.killed_at is not None else "unfinished")
        return (
            f"worker {self.worker}'s attempt {self.number} ({self.journal}) held {self.name} from {self.granted:,}, "
            f"believing until {self.believed_until:,}, valid until {self.until:,}, {fate}"
        )


def holds_of(lines: Iterable[Line], killed_at: int | None = None, journal: str = "") -> list[Hold]:
    """Return the holds that one process's journal tells of, in the order of their grants."""
    lines = list(lines)
    holds: dict[tuple[int, int], Hold] = {}
    for line in lines:
        if line["event"] == "grant":
            key = line["worker"], line["number"]
            holds[key] = Hold(
                *key, line["name"], line["asked"], line["at"], line["until"], line["lease"], journal=journal
            )
    # By now all are known: a hold may be told lost before its worker has come to write that it was granted.
    for line in lines:
        hold = holds.get((line.get("worker"), line.get("number")))
        if hold is not None:
            hold.until = max(hold.until, line.get("until", 0))
            _add(hold, line)
    for hold in holds.values():
        hold.killed_at = killed_at if hold.gone is None else None
    return sorted(holds.values(), key=lambda hold: hold.granted)


def _add(hold: Hold, line: Line):
    match line["event"]:
        case "look":
            hold.looks.append(line)
        case "told":
            hold.told.append(line)
        case "write":
            hold.read, hold.written = line["written"] - 1, line["written"]
        case "end":
            hold.ended, hold.kept = line["at"], line["kept"]
        case "gone":
            hold.gone = line["how"]
