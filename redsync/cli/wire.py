"""Messages between `redsync lock` and its keeper, as lines of words.

Neither side ever waits for the other, which may be stopped: it keeps what it can't write yet. When one process ends,
the other reads the end of the wire.
"""

from __future__ import annotations

import math
import select
import socket
from typing import Final

__all__ = ["NOTHING", "Wire", "is_ready"]

NOTHING: Final = "-"
"""The word for None."""

_CHUNK: Final = 4096
_LONGEST: Final = 1e6


class Wire:
    """One end of the wire.

    Attributes:
        closed: True if the other side has closed the wire and we have received all that it wrote.
    """

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self.closed = False
        self._end = end
        self._unsent = b""
        self._received = b""

    @classmethod
    def pair(cls) -> tuple[Wire, Wire]:
        """Return both ends."""
        ours, theirs = socket.socketpair()
        return cls(ours), cls(theirs)

    def fileno(self) -> int:
        """Return the descriptor to wait for."""
        return self._end.fileno()

    def close(self) -> None:
        """Close this end."""
        self._end.close()

    def send(self, *words: object) -> None:
        """Send a line; does nothing if the other side has closed the wire."""
        self._unsent += " ".join(map(str, words)).encode() + b"\n"
        try:
            self._unsent = self._unsent[self._end.send(self._unsent) :]
        except BlockingIOError:
            pass
        except OSError:  # the other side has closed the wire; `receive` finds out
            self._unsent = b""

    def receive(self) -> list[list[str]]:
        """Return the lines received so far, as words."""
        while not self.closed:
            try:
                data = self._end.recv(_CHUNK)
            except BlockingIOError:
                break
            except ConnectionError:
                data = b""
            self.closed = not data
            self._received += data
        *lines, self._received = self._received.split(b"\n")
        return [line.decode().split() for line in lines]


def is_ready(seconds: float, *files: Wire | int) -> bool:
    """Wait until a file is readable or the time is up; return whether one is readable.

    Unlike `select`, this works with descriptors above 1,023. No wait is longer than eleven days.
    """
    poll = select.poll()
    for file in files:
        poll.register(file, select.POLLIN)
    return bool(poll.poll(math.ceil(min(max(seconds, 0.0), _LONGEST) * 1000)))
