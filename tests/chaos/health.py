"""Self-observation of a client process: errors of the library, leftovers of a closed client."""

import gc
import logging
import os
import stat
import threading
import time
from collections.abc import Awaitable, Callable, Sequence

from tests.chaos.history import History


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
