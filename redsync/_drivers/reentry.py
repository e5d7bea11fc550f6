"""Re-entry: a thread calls a client in the middle of another call of the same client.

A signal handler runs in the main thread, between any two of its steps. A finalizer runs in any thread, whenever Python
collects garbage. If the interrupted code holds one of the client's locks, the handler's call must not wait for it: only
the interrupted code can release it. So each thread records what it does for a client:

| doing | the thread | a call in between |
|---|---|---|
| None | is outside | is an ordinary call |
| `BUSY` | may hold a lock, or sends or reads for others | never waits, see below |
| a sleeper | sleeps until that is done, and may have the lead | runs; first the sleeper gives up the lead |
| `CALLING` | has called the application back | runs |

If a call comes while the thread is busy and releases something or closes the client, the maintenance performs it a
moment later. All other calls raise `ReentrantCallError`.
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
    """The running thread's state for one client.

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
        """Suspend the thread's sleep or callback until the end of the block."""
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
