"""The counters that owners read, and overwrite a moment later, under their holds: the classic case for a lock.

They are files, because a file knows nothing of locks, and they witness exclusion without any clock.
"""

import os
from collections.abc import Sequence
from pathlib import Path


class Counter:
    """The counter of one lock; it excludes no owner: that is the lock's task."""

    def __init__(self, directory: Path, index: int) -> None:
        """Open the counter of the lock with that index in the run; the first process creates it."""
        self._file = os.open(directory / f"lock-{index}.counter", os.O_RDWR | os.O_CREAT, 0o600)

    def read(self) -> int:
        """Return its value."""
        return int(os.pread(self._file, 32, 0) or b"0")

    def write(self, value: int) -> None:
        """Overwrite it."""
        os.pwrite(self._file, b"%020d" % value, 0)

    def close(self) -> None:
        """Close its file."""
        os.close(self._file)


def read_counters(directory: Path, names: Sequence[str]) -> dict[str, int]:
    """Return the counters of the locks of a run, by name."""
    counters = {name: Counter(directory, index) for index, name in enumerate(names)}
    try:
        return {name: counter.read() for name, counter in counters.items()}
    finally:
        for counter in counters.values():
            counter.close()
