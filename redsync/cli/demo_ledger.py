"""What the workers of the demo leave behind: the ledgers they fight over, and the journals of what they did.

All are files in one directory, because a file knows nothing of locks. For each lock name there is

- a *ledger* of entries, only ever appended to: `BEGIN` and `END` of each critical section, numbered by what the worker
  read there before;
- a *counter* that is read, and a moment later overwritten: the classic that needs a lock.

Each process keeps a *journal*, one line per attempt to take a lock. It is written outside of the lock, each line by a
single write, so that a process may be killed at any time and all lines but the last are whole.

All instants are nanoseconds on one clock of the machine, which all processes share: they can be compared exactly.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

__all__ = ["HELD", "LOST", "NO_QUORUM", "TIMEOUT", "Attempt", "Entry", "JournalReader", "Ledger", "now_ns"]

now_ns: Callable[[], int] = (
    # The clock of the leases, on which a client's `valid_until` is an instant too.
    partial(time.clock_gettime_ns, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic_ns
)

HELD: Final = "held"
LOST: Final = "lost"
TIMEOUT: Final = "timeout"
NO_QUORUM: Final = "no-quorum"

_TAIL = 1024
"""Bytes to look at for the latest number: a good dozen of entries."""


class Attempt(NamedTuple):
    """One attempt to take a lock, and all that followed from it; a line of a journal.

    Attributes:
        outcome: "held", "lost" (held, but the hold ended before its release), "timeout" or "no-quorum".
        name: The lock, by index.
        worker: Who, counted over all processes.
        asked: When it began to wait.
        granted: When its acquire had returned; 0 if it was never granted.
        ended: When it began its last release; of a lost hold its `valid_until`, if that was earlier.
        kept: 1 if the hold was still valid after all that was done under it, else 0.
        reentries: How many nested acquires succeeded.
        quorum_errors: How many acquires, the nested ones included, met too few nodes.
        read: The counter as it was read; 0 too if nothing was written.
        written: What the counter was set to; 0 if nothing was written.
    """

    outcome: str
    name: int
    worker: int
    asked: int
    granted: int = 0
    ended: int = 0
    kept: int = 0
    reentries: int = 0
    quorum_errors: int = 0
    read: int = 0
    written: int = 0

    @property
    def key(self) -> tuple[int, int]:
        """What tells this acquisition from all others: the worker, and when it was granted."""
        return self.worker, self.granted

    def line(self) -> bytes:
        """Return the journal's line."""
        return (" ".join(map(str, self)) + "\n").encode()

    @classmethod
    def parse(cls, line: bytes) -> Attempt:
        """Return what a line of a journal says."""
        outcome, *numbers = line.decode().split()
        return cls(outcome, *map(int, numbers))


class Entry(NamedTuple):
    """A line of a ledger.

    Attributes:
        kind: "BEGIN" or "END".
        name: The lock's name.
        worker: Who wrote it, counted over all processes.
        granted: When that worker's acquire had returned.
        number: 1 more than the highest number that it had found in the ledger.
    """

    kind: str
    name: str
    worker: int
    granted: int
    number: int

    @property
    def key(self) -> tuple[int, int]:
        """What tells this acquisition from all others: the worker, and when it was granted."""
        return self.worker, self.granted

    @classmethod
    def parse(cls, line: bytes) -> Entry:
        """Return what a line of a ledger says."""
        kind, name, *numbers = line.decode().split()
        return cls(kind, name, *map(int, numbers))


class Ledger:
    """The ledger and the counter of one lock. Nothing here excludes anybody: that is what the lock is for.

    Attributes:
        name: The lock's name.
    """

    def __init__(self, directory: Path, index: int, name: str) -> None:
        """Open both files; whoever comes first makes them.

        Args:
            directory: Where they are.
            index: The lock's place among those of the demo.
            name: The lock's name.
        """
        self.name = name
        self._entries = os.open(directory / f"lock-{index}.ledger", os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        self._counter = os.open(directory / f"lock-{index}.counter", os.O_RDWR | os.O_CREAT, 0o600)

    def begin(self, worker: int, granted: int) -> Entry:
        """Append the entry that opens a critical section, numbered by what stands in the ledger."""
        # The highest of the last few: who lost its lock may have appended an old number at any time.
        number = 1 + max((entry.number for entry in self._tail()), default=0)
        entry = Entry("BEGIN", self.name, worker, granted, number)
        self._append(entry)
        return entry

    def end(self, begun: Entry) -> None:
        """Append the entry that closes a critical section."""
        self._append(begun._replace(kind="END"))

    def read_counter(self) -> int:
        """Return the counter."""
        return int(os.pread(self._counter, 32, 0) or b"0")

    def write_counter(self, value: int) -> None:
        """Overwrite the counter."""
        os.pwrite(self._counter, b"%020d" % value, 0)

    def entries(self) -> list[Entry]:
        """Return all entries in the order in which they were appended."""
        return list(self._parse(os.pread(self._entries, self._size(), 0)))

    def close(self) -> None:
        """Close both files."""
        os.close(self._entries)
        os.close(self._counter)

    def _append(self, entry: Entry) -> None:
        os.write(self._entries, (" ".join(map(str, entry)) + "\n").encode())

    def _size(self) -> int:
        return os.fstat(self._entries).st_size

    def _tail(self) -> list[Entry]:
        start = max(self._size() - _TAIL, 0)
        text = os.pread(self._entries, 2 * _TAIL, start)
        # What precedes the first line's end may be half a line; so may the last one, which another is writing now.
        lines = text.partition(b"\n")[2] if start else text
        return list(self._parse(lines[: lines.rfind(b"\n") + 1]))

    @staticmethod
    def _parse(text: bytes) -> Iterator[Entry]:
        return map(Entry.parse, text.splitlines())


class JournalReader:
    """Follows the journals of all processes while they grow.

    Attributes:
        attempts: All that was read so far, per process in the order in which the attempts ended.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._offsets: dict[Path, int] = {}
        self.attempts: list[Attempt] = []

    @staticmethod
    def path(directory: Path, process: int) -> Path:
        """Return where a process keeps its journal."""
        return directory / f"process-{process}.journal"

    def read(self) -> list[Attempt]:
        """Read what was added since the last call, and return it."""
        new: list[Attempt] = []
        for path in sorted(self._directory.glob("process-*.journal")):
            with path.open("rb") as journal:
                journal.seek(self._offsets.get(path, 0))
                lines, _, _ = journal.read().rpartition(b"\n")
            if lines:
                self._offsets[path] = self._offsets.get(path, 0) + len(lines) + 1
                new.extend(map(Attempt.parse, lines.splitlines()))
        self.attempts.extend(new)
        return new
