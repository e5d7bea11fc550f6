"""Re-entry: a thread that calls a client while it is in the middle of another call of the same client.

A signal's handler runs in the main thread, between any two of its steps. A finalizer runs in any thread, whenever
Python collects garbage. If the interrupted code holds one of the client's locks, the handler's call must not wait for
it: only the interrupted code can release it. So each thread records what it is doing for a client:

| doing | the thread | a call in between |
|---|---|---|
| None | is outside | is an ordinary call |
| `BUSY` | may hold a lock, or sends or reads for others | never waits, see below |
| a sleeper | sleeps until that is done, and may have the lead | is carried out; first the sleeper gives up the lead |
| `CALLING` | has called the application back | is carried out |

Of the calls that come while the thread is busy, the maintenance performs those that give something back, or close the
client, a moment later. All others raise `ReentrantCallError`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from redsync._drivers.requests import Sleeper

__all__ = ["BUSY", "CALLING", "Doing"]

BUSY: Final = "busy"
CALLING: Final = "calling"


class Doing(threading.local):
    """What the running thread does for one client.

    Attributes:
        what: One of the values above.
    """

    what: Sleeper | str | None = None

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Mark the thread as busy until the end of the block."""
        before = self.what
        try:
            self.what = BUSY
            yield
        finally:
            self.what = before

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Suspend the thread's sleep, or its call of the application, until the end of the block."""
        before = self.what
        go_on = None
        try:
            self.what = BUSY
            if isinstance(before, Sleeper):
                go_on = before.rest(before)
            self.what = None
            yield
        finally:
            try:
                self.what = BUSY
                if go_on is not None:
                    go_on()
            finally:
                self.what = before
