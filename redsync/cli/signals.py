"""Signals for `redsync lock`: raised as exceptions while it waits for the lock, collected while the command runs.

Python checks for signals before a system call. A signal between this check and the call would go unnoticed until the
call returns. So each sleep here also waits for the byte that each signal writes to a pipe.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections import deque
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final, Self

from redsync.cli.wire import Wire, is_ready

__all__ = ["FORWARDED", "KEYS", "SignalledError", "Signals", "light_sleep"]

FORWARDED: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""Signals that end a program from outside: the command gets them; before it has started, they end the wait."""

KEYS: Final = (signal.SIGINT, signal.SIGQUIT)
"""Signals that a terminal sends for a key."""

_BACKGROUND: Final = (signal.SIGTTIN, signal.SIGTTOU)
"""Signals that stop a background program that uses the terminal; after `stty tostop` one log line is enough."""

_WHILE_RUNNING: Final = (signal.SIGCHLD, signal.SIGTSTP, signal.SIGCONT)


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
        spurned: The signals that our parent had ignored at our start (nohup, a shell's background job).
    """

    def __init__(self) -> None:
        self._came: deque[int] = deque()
        self._collecting = False
        self._raised = False
        self.spurned = {number for number in signal.valid_signals() if signal.getsignal(number) is signal.SIG_IGN}
        self._former: dict[int, Any] = {}
        self._reader, self._writer = -1, -1
        self._former_fd = -1

    def __enter__(self) -> Self:
        self._reader, self._writer = _pipe()
        self._former_fd = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        for number in FORWARDED:
            self._install(number)
        for number in _BACKGROUND:
            self._former[number] = signal.signal(number, signal.SIG_IGN)
        return self

    def __exit__(self, *error: object) -> None:
        for number, former in self._former.items():
            signal.signal(number, former)
        signal.set_wakeup_fd(self._former_fd)
        os.close(self._reader)
        # The other end stays open for a `wake` that another thread has started: the process is about to end.

    def _install(self, number: int) -> None:
        # Signals that our parent ignored stay ignored, here and in the command.
        if number == signal.SIGCHLD or number not in self.spurned:
            self._former[number] = signal.signal(number, self._handle)

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self._collecting:
            self._came.append(number)
        elif not self._raised:
            self._raised = True
            raise SignalledError(number)

    def collect(self) -> None:
        """From now on, raise nothing."""
        self._collecting = True
        for number in _WHILE_RUNNING:
            self._install(number)

    def wait(self, seconds: float, *others: Wire) -> list[int]:
        """Sleep until a signal, a message, a call of `wake` or the timeout; return the signals that arrived."""
        is_ready(seconds, self._reader, *others)
        with contextlib.suppress(BlockingIOError):
            os.read(self._reader, 4096)
        came = []
        while self._came:
            came.append(self._came.popleft())
        return came

    def wake(self) -> None:
        """End the sleep of `wait`, from any thread."""
        # A full pipe wakes `wait` anyway.
        with contextlib.suppress(BlockingIOError):
            os.write(self._writer, b"\0")

    def stop_ourselves(self) -> None:
        """Stop this process group as Ctrl-Z does; return when it continues, or if it can't be stopped."""
        former = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        try:
            os.killpg(os.getpgrp(), signal.SIGTSTP)
            # With several threads the stop may take effect later.
            is_ready(0.1, self._reader)
        finally:
            signal.signal(signal.SIGTSTP, former)


@contextlib.contextmanager
def light_sleep() -> Iterator[Callable[..., None]]:
    """Yield a function that sleeps for some seconds, or until a signal arrives or one of the given files is readable.

    For the main thread, and for signals with a handler, such as Ctrl-C. The function raises what the handler raises.
    """
    reader, writer = _pipe()
    former = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

    def sleep(seconds: float, *files: int) -> None:
        is_ready(seconds, reader, *files)
        with contextlib.suppress(BlockingIOError):
            os.read(reader, 4096)

    try:
        yield sleep
    finally:
        signal.set_wakeup_fd(former)
        os.close(reader)
        os.close(writer)


def _pipe() -> tuple[int, int]:
    ends = os.pipe()
    for end in ends:
        os.set_blocking(end, False)
    return ends
