"""Signals for `redsync lock`, and messages between it and its shim.

Signals are raised as exceptions while it waits for the lock, and collected while the command runs. Python checks for
signals before a system call. A signal between this check and the call would go unnoticed until the call returns. So
each sleep here also waits for the byte that each signal writes to a pipe.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
from collections import deque
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from types import FrameType
from typing import Any, Final, Self

LONGEST: Final = 1e6
"""The longest sleep in seconds that the system calls take."""


class Pipe:
    """One end of the pipe: messages between `redsync lock` and its shim, tuples whose first word says what it is.

    When one process ends, the other reads the end of the pipe. Neither waits for a stopped one: messages are few, and
    the pipe keeps hundreds of them; `redsync lock` sends one per renewal, and continues a stopped shim.

    Attributes:
        closed: True if the other side has closed the pipe and we have received all that it wrote.
    """

    def __init__(self, end: Connection) -> None:
        self.closed = False
        self.fileno, self.close = end.fileno, end.close
        self._end = end

    def send(self, *words: Any) -> None:
        """Send a message; does nothing if the other side has closed the pipe."""
        with contextlib.suppress(ConnectionError):  # `receive` finds out
            self._end.send(words)

    def receive(self) -> Iterator[tuple[Any, ...]]:
        """Yield the messages received so far."""
        while not self.closed and self._end.poll():
            try:
                words = self._end.recv()
            except (EOFError, OSError):
                self.closed = True
            else:
                yield words


def is_ready(seconds: float, *files: Pipe | int) -> bool:
    """Wait until a file is readable or the time is up; return whether one is readable.

    Unlike `select`, this works with descriptors above 1,023.
    """
    descriptors = [file if isinstance(file, int) else file.fileno() for file in files]
    return bool(wait(descriptors, None if seconds == math.inf else min(max(seconds, 0.0), LONGEST)))


FORWARDED: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""Signals that end a program from outside: the command gets them; before it has started, they end the wait."""

KEYS: Final = (signal.SIGINT, signal.SIGQUIT)
"""Signals that a terminal sends for a key."""


def has_terminal() -> bool:
    """Return whether this process group is in the foreground of a terminal."""
    try:
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:  # the terminal is gone
        return False
    finally:
        os.close(terminal)


class SignalledError(BaseException):
    """A signal arrived while there was no command to forward it to.

    Attributes:
        number: The signal's number.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Signals:
    """Catches signals within its `with` block; for the main thread.

    It raises the first signal of `FORWARDED` as `SignalledError`, and drops those that arrive during the clean-up: an
    impatient second Ctrl-C must not leave a place in a queue. After `collect`, it only records signals.

    Attributes:
        ignored: The signals that our parent had ignored at our start (nohup, a shell's background job).
    """

    def __init__(self) -> None:
        self._came: deque[int] = deque()
        self._collecting = False
        self._raised = False
        self.ignored = {number for number in signal.valid_signals() if signal.getsignal(number) is signal.SIG_IGN}
        self._former: dict[int, Any] = {}
        self._reader, self._writer = -1, -1
        self._former_fd = -1

    def __enter__(self) -> Self:
        self._reader, self._writer = _pipe()
        self._former_fd = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        for number in FORWARDED:
            # Signals that our parent ignored stay ignored, here and in the command.
            if number not in self.ignored:
                self._former[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        for number, former in self._former.items():
            signal.signal(number, former)
        signal.set_wakeup_fd(self._former_fd)
        os.close(self._reader)
        # The other end stays open for a `wake` that another thread has started: the process is about to end.

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self._collecting:
            self._came.append(number)
        elif not self._raised:
            self._raised = True
            raise SignalledError(number)

    def collect(self) -> None:
        """From now on, raise nothing."""
        self._collecting = True

    def wait(self, seconds: float, *others: Pipe) -> None:
        """Sleep until a signal, a message, a call of `wake` or the timeout."""
        is_ready(seconds, self._reader, *others)
        with contextlib.suppress(BlockingIOError):
            os.read(self._reader, 4096)

    def take(self) -> list[int]:
        """Return the signals that have arrived since the last call."""
        came = []
        while self._came:
            came.append(self._came.popleft())
        return came

    def wake(self) -> None:
        """End the sleep of `wait`, from any thread."""
        # A full pipe wakes `wait` anyway.
        with contextlib.suppress(BlockingIOError):
            os.write(self._writer, b"\0")


def _pipe() -> tuple[int, int]:
    ends = os.pipe()
    for end in ends:
        os.set_blocking(end, False)
    return ends
