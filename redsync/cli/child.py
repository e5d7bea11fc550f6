"""The command that `redsync lock` runs: a process group of its own, with the terminal if there is one.

A group of its own, so that a signal reaches all that the command has started, also a shell's pipeline, and reaches it
once: what the terminal sends goes to the command's group alone, and what is sent to us is forwarded.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from redsync.cli.exits import SIGNALLED

__all__ = ["Child", "spawn"]

_STDIN: Final = 0
_POLL: Final = 0.01


class Child:
    """A command that runs.

    Attributes:
        group: Its process group.
        status: Its exit status, 128 + n if signal n ended it; None while it runs.
        stopped: It is stopped, by Ctrl-Z for example.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start it; in the foreground, if we are there.

        Raises:
            OSError: It can't be executed.
        """
        self.status: int | None = None
        self.stopped = False
        self._terminal = _in_foreground()
        # What was open for us beyond standard error was meant for it; what we have opened ourselves is not inherited.
        self._process = spawn(command, env=environment, process_group=0, close_fds=False)
        self.group: Final = self._process.pid
        if self._terminal:
            _give_terminal(self.group)
            # It may have asked for input before it was allowed to, and was stopped for that.
            self.signal(signal.SIGCONT)

    def poll(self) -> int | None:
        """Look whether it has ended, or was stopped; return its exit status."""
        while self.status is None:
            number, status = os.waitpid(self.group, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            if not number:
                break
            self.stopped = os.WIFSTOPPED(status)
            if os.WIFEXITED(status) or os.WIFSIGNALED(status):
                code = os.waitstatus_to_exitcode(status)
                self._process.returncode = code
                self.status = SIGNALLED - code if code < 0 else code
        return self.status

    def wait(self) -> None:
        """Wait for its end."""
        while self.poll() is None:
            time.sleep(_POLL)

    def signal(self, number: int) -> None:
        """Send a signal to all of its group that are left."""
        # None may be left, or only such as have taken another identity.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.group, number)

    def end(self, number: int) -> None:
        """Send a signal that is to end it, also if it is stopped."""
        self.signal(number)
        self.signal(signal.SIGCONT)

    @property
    def has_terminal(self) -> bool:
        """Whether it was given the terminal."""
        return self._terminal

    def resume(self) -> None:
        """Let it go on after a stop, in the foreground if we are there."""
        self._terminal = _in_foreground()
        if self._terminal:
            _give_terminal(self.group)
        self.stopped = False
        self.signal(signal.SIGCONT)

    def take_terminal(self) -> None:
        """Take the terminal back, if it was given."""
        if self._terminal:
            self._terminal = False
            _give_terminal(os.getpgrp())

    def clear(self, patience: float) -> None:
        """After its end: wait until nothing of its group is left, and kill what is left when the time is up."""
        deadline = time.monotonic() + patience
        while self._is_populated() and time.monotonic() < deadline:
            time.sleep(_POLL)
        self.signal(signal.SIGKILL)

    def _is_populated(self) -> bool:
        try:
            os.killpg(self.group, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        return True


def spawn(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a process, as `subprocess.Popen` does; signals that come meanwhile do no harm.

    Raises:
        OSError: It can't be executed.
    """
    # With vfork the new process is for a moment in our group, without our handlers: Ctrl-Z would stop it there, and us
    # with it, who wait for it. With fork it has our handlers until it is in a group of its own.
    subprocess._USE_VFORK = False  # type: ignore[misc]
    return subprocess.Popen(command, **options)  # noqa: S603


def _in_foreground() -> bool:
    try:
        return os.isatty(_STDIN) and os.tcgetpgrp(_STDIN) == os.getpgrp()
    except OSError:  # a terminal that is not ours
        return False


def _give_terminal(group: int) -> None:
    # Who is not in the foreground is stopped when it does this, unless it blocks the signal.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
    try:
        os.tcsetpgrp(_STDIN, group)
    except OSError:  # that group has ended, or the terminal has
        pass
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
