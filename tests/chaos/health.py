"""Self-observation of a client process: stalls, errors of the library, leftovers of a closed client."""

from __future__ import annotations

import gc
import logging
import os
import stat
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Self

from tests.chaos.history import History, now_ns

_BEAT: Final = 0.05
"""Seconds between two beats of a pulse."""

_LATE: Final = 0.25
"""Seconds by which a beat must be late to count as a stall."""


class Pulse:
    """Notes in the history, within the `with` block, when this process stalls: stopped, starved by others, or busy."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pulse", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        since, used = now_ns(), time.process_time_ns()
        while not self._over.wait(_BEAT):
            at, using = now_ns(), time.process_time_ns()
            if (at - since) / 1e9 > _BEAT + _LATE:
                self._history.note("stall", since=since, at=at, cpu=using - used)
            since, used = at, using


class Complaints(logging.Handler):
    """Records the library's own errors, logged with a traceback: these should never happen."""

    def __init__(self, history: History) -> None:
        super().__init__(logging.ERROR)
        self._history = history

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line for a record that carries an exception."""
        if record.exc_info:
            self._history.note("complaint", text=logging.Formatter().format(record))


async def leftovers(
    before: set[tuple[int, int]], sleep: Callable[[float], Awaitable[None]], timeout: float = 3.0
) -> tuple[Sequence[str], int]:
    """Return the threads and the sockets that a closed client left, after `timeout` seconds at most to end them."""
    deadline = time.monotonic() + timeout
    while True:
        gc.collect()
        threads = [thread.name for thread in redsync_threads()]
        left = len(open_sockets() - before)
        if time.monotonic() > deadline or not (threads or left):
            return threads, left
        await sleep(0.01)


def redsync_threads() -> set[threading.Thread]:
    """Return the threads of this process that clients have started.

    Python also lists a thread whose start was interrupted, forever.
    """
    return {thread for thread in threading.enumerate() if thread.name.startswith("redsync-") and thread.is_alive()}


def open_sockets() -> set[tuple[int, int]]:
    """Return the open sockets of this process: descriptor and inode."""
    found = set()
    for name in os.listdir("/dev/fd"):
        try:
            status = os.fstat(int(name))
        except OSError:  # the descriptor of the listing itself
            continue
        if stat.S_ISSOCK(status.st_mode):
            found.add((int(name), status.st_ino))
    return found
