"""The data that owners read and write under their holds: two witnesses of exclusion that trust no clock.

Both are files, because a file knows nothing of locks. Each contended synchronizer has

- a *ledger* of entries, only ever appended to: `BEGIN` and `END` of each critical section, numbered by what its owner
  read there before;
- a *counter* that an owner reads, and overwrites a moment later: the classic case for a lock.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from redsync.testing.harness.holds import Key

__all__ = ["Entry", "Ledger", "read_ledgers"]

_TAIL = 1024
"""Bytes to look at for the latest number: a good dozen entries."""


class Entry(NamedTuple):
    """A line of a ledger.

    Attributes:
        kind: "BEGIN" or "END".
        name: The lock's name.
        worker: The number of its writer, counted over all processes.
        granted: The instant that worker's acquire had returned.
        number: 1 more than the highest number that the worker found in the ledger.
    """

    kind: str
    name: str
    worker: int
    granted: int
    number: int

    @property
    def key(self) -> Key:
        """The identity of this acquisition: the worker, and when it was granted."""
        return self.worker, self.granted

    @classmethod
    def parse(cls, line: bytes) -> Entry:
        """Return the entry in a line of a ledger."""
        kind, name, *numbers = line.decode().split()
        return cls(kind, name, *map(int, numbers))


class Ledger:
    """The ledger and the counter of one lock; they exclude no owner: that is the lock's task.

    Attributes:
        name: The lock's name.
    """

    def __init__(self, directory: Path, index: int, name: str) -> None:
        """Open both files of the lock with that index in the run; the first process creates them."""
        self.name = name
        self._entries = os.open(directory / f"lock-{index}.ledger", os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        self._counter = os.open(directory / f"lock-{index}.counter", os.O_RDWR | os.O_CREAT, 0o600)

    def begin(self, worker: int, granted: int) -> Entry:
        """Append the entry that opens a critical section, numbered by what stands in the ledger."""
        # The highest of the last few: an owner that lost its lock may have appended an old number at any time.
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
        # The first line may be cut in half, and so may the last, if another process is writing it now.
        lines = text.partition(b"\n")[2] if start else text
        return list(self._parse(lines[: lines.rfind(b"\n") + 1]))

    @staticmethod
    def _parse(text: bytes) -> Iterator[Entry]:
        return map(Entry.parse, text.splitlines())


def read_ledgers(directory: Path, names: Sequence[str]) -> tuple[dict[str, list[Entry]], dict[str, int]]:
    """Return what owners wrote under each lock of a run: the entries by name, and the counters."""
    ledgers = [Ledger(directory, index, name) for index, name in enumerate(names)]
    try:
        return {one.name: one.entries() for one in ledgers}, {one.name: one.read_counter() for one in ledgers}
    finally:
        for ledger in ledgers:
            ledger.close()
