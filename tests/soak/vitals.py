"""What a client process notices of itself: that it stands still, that the library complains, what a client leaves."""

import gc
import logging
import threading
import time
from collections.abc import Sequence

from redsync.cli.demo_ledger import now_ns
from tests.soak.journal import Journal
from tests.support.leftovers import open_sockets, redsync_threads

PULSE = 0.05  # seconds
STALL = 0.25  # seconds by which a pulse must be late to be told of


class Pulse:
    """Notices when this process stands still: stopped, or starved by others, or busy with itself."""

    def __init__(self, journal: Journal):
        self._journal = journal
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="pulse", daemon=True)

    def __enter__(self):
        self._thread.start()

    def __exit__(self, *error):
        self._over.set()
        self._thread.join()

    def _beat(self):
        since, used = now_ns(), time.process_time_ns()
        while not self._over.wait(PULSE):
            at, using = now_ns(), time.process_time_ns()
            if at - since > (PULSE + STALL) * 1e9:
                self._journal.note("stall", since=since, at=at, cpu=using - used)
            since, used = at, using


class Complaints(logging.Handler):
    """Notes what the library reports of itself with a traceback: that should never happen."""

    def __init__(self, journal: Journal):
        super().__init__(logging.ERROR)
        self._journal = journal

    def emit(self, record: logging.LogRecord):
        if record.exc_info:
            self._journal.note("complaint", text=logging.Formatter().format(record))


def leftovers(before: set[tuple[int, int]], patience: float = 3.0) -> tuple[Sequence[str], int]:
    """Return the threads and the number of sockets that a closed client has left, once it had time to end them."""
    deadline = time.monotonic() + patience
    while True:
        gc.collect()
        threads = [thread.name for thread in redsync_threads()]
        left = len(open_sockets() - before)
        if time.monotonic() > deadline or not (threads or left):
            return threads, left
        time.sleep(0.01)
