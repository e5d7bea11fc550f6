"""Runs the command of `redsync lock`: tells the shim the deadline, and forwards signals.

The shim is the process that enforces the command's deadline even if `redsync lock` stops or ends; see `shim`. It is a
copy of this process, forked before there are threads, connections or a lock: small, with nothing in it that can fail
later. The two processes watch each other. If we are stopped, the shim hears of no later deadline; if we end, it reads
the end of the pipe. In both cases it ends the command in time. If the shim is stopped, we continue it. If it ends
before the command, the kernel kills the command (PR_SET_PDEATHSIG), and we kill the command's descendants, which are
ours by then.

Signals are raised as exceptions while `redsync lock` waits for the lock, and collected while the command runs. Python
checks for signals before a system call. A signal between this check and the call would go unnoticed until the call
returns. So each sleep here also waits for the byte that each signal writes to a pipe.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import wait
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self

from redsync.cli.exits import SIGNALLED
from redsync.cli.process_tree import CHILD_SUBREAPER, ProcessTree, set_option
from redsync.cli.shim import DESERTED, KILL_TIMEOUT, LONGEST_SLEEP, Pipe, Policy, Shim, now, unblocked_pipe

if TYPE_CHECKING:
    from redsync import Hold

_SHARE: Final = 0.2
_SHORTEST_SLEEP: Final = 0.02
_RESOLUTION: Final = 0.001
_PASSES: Final = 2


FORWARDED: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""Signals that end a program from outside: the command gets them; before it has started, they end the wait."""

KEYS: Final = (signal.SIGINT, signal.SIGQUIT)  # signals that a terminal sends for a key


def has_terminal() -> bool:
    """Return whether this process group is in the foreground of a terminal."""
    try:
        with open("/dev/tty", "rb", buffering=0) as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:  # there is none, or it is gone
        return False


class Signals:
    """Catches signals within its `with` block; for the main thread.

    The first signal of `FORWARDED` raises `SystemExit`, with the status 128 + n. Those that arrive during the clean-up
    are dropped: an impatient second Ctrl-C must not leave a place in a queue. After `collect`, it only records signals.

    Attributes:
        ignored: The signals that our parent had ignored at our start (nohup, a shell's background job).
    """

    def __init__(self) -> None:
        """Begin to catch them."""
        self.ignored = {number for number in signal.valid_signals() if signal.getsignal(number) is signal.SIG_IGN}
        self._came = bytearray()
        self._raises = True
        # Python writes the number of each signal that has a handler.
        self._reader, self._writer = unblocked_pipe()
        self._former_fd = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        # Signals that our parent ignored stay ignored, here and in the command.
        caught = [number for number in FORWARDED if number not in self.ignored]
        self._former = {number: signal.signal(number, self._handle) for number in caught}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for number, former in self._former.items():
            signal.signal(number, former)
        signal.set_wakeup_fd(self._former_fd)
        os.close(self._reader)
        # The other end stays open for a `wake` that another thread has started: the process is about to end.

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self._raises:
            self._raises = False
            raise SystemExit(SIGNALLED + number)

    def collect(self) -> None:
        """From now on, raise nothing."""
        self._raises = False

    def wait(self, seconds: float, *others: Pipe) -> None:
        """Sleep until a signal, a message, a call of `wake` or the timeout."""
        wait([self._reader, *(each.fileno() for each in others)], min(max(seconds, 0.0), LONGEST_SLEEP))
        with contextlib.suppress(BlockingIOError):
            self._came += os.read(self._reader, 4096)

    def take(self) -> list[int]:
        """Return the signals that have arrived since the last call."""
        came = [number for number in self._came if number in self._former]
        self._came.clear()
        return came

    def wake(self) -> None:
        """End the sleep of `wait`, from any thread."""
        # A full pipe wakes `wait` anyway.
        with contextlib.suppress(BlockingIOError):
            os.write(self._writer, b"\0")


class ShimProcess:
    """The shim, which runs until the end of the `with` block.

    Attributes:
        pipe: The pipe to it.
        number: Its process id.
        tree: The shim, the command and its descendants.
    """

    def __init__(self) -> None:
        """Start it.

        Raises:
            OSError: No process can be started.
        """
        self.tree = ProcessTree()
        self.pipe, other = map(Pipe, multiprocessing.Pipe())
        # A signal would make a copy that still has our handlers act as a second `redsync lock`.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            self.number = os.fork()
            if not self.number:
                self.pipe.close()
                _become_shim(other, before)
            with contextlib.suppress(PermissionError, ProcessLookupError):
                os.setpgid(self.number, self.number)
        finally:
            other.close()
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def wake(self) -> None:
        """Continue it if it was stopped."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.number, signal.SIGCONT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Close the pipe, which ends the shim, and wait for that."""
        self.pipe.close()
        self.wake()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.number, 0)


def _become_shim(pipe: Pipe, mask: set[int]) -> NoReturn:
    """Run as the shim until this process ends."""
    try:
        os.setpgid(0, 0)
        shim = Shim(pipe)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        shim.run()
    finally:
        # The parent sees the end of the pipe even after a failure. `_exit` does not repeat the parent's clean-up.
        os._exit(0)


class Supervisor:
    """Watches a command, through its shim, and the hold that it runs under.

    Attributes:
        status: The command's exit status, 128 + n if signal n ended it.
        errno: Why the command could not be executed; 0 if it could.
        reason: Why redsync ended the command, a constant of `shim`; None if it did not.
    """

    def __init__(
        self, shim: ShimProcess, hold: Hold, signals: Signals, policy: Policy, say: Callable[[str], object]
    ) -> None:
        self.status = 0
        self.errno = 0
        self.reason: str | None = None
        self._shim = shim
        self._pipe = shim.pipe
        self._hold = hold
        self._signals = signals
        self._policy = policy
        self._say = say
        # With the terminal, the command is in our process group, so that Ctrl-C and Ctrl-Z reach both; else in its own.
        self._group = os.getpgrp() if has_terminal() else 0
        self._runs = False
        self._until = now() + hold.remaining()  # the clock first: never later than the end of the hold
        self._lost = False
        self._over = False

    def run(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Run the command; return when it and all its descendants have ended."""
        try:
            # First: if the shim is killed a moment later, the command's descendants must be ours.
            set_option(CHILD_SUBREAPER, 1)
            self._pipe.send(self._policy, self._until, self._group, command, environment, self._signals.ignored)
            while not self._over:
                self._tell()
                self._shim.wake()
                self._signals.wait(self._pause(), self._pipe)
                for words in self._pipe.receive():
                    self._hear(*words)
                # Before the command starts they wait for it; after its end they end `--min-hold`.
                for number in self._signals.take() if self._runs and not self._over else ():
                    # A command in our group has already received a signal that comes from a key of the terminal.
                    if not (self._group and number in KEYS and has_terminal()):
                        self._shim.tree.forward(number)
                if self._pipe.closed and not self._over:
                    self.reason = DESERTED
                    self._end_all()
        except BaseException:
            # Whatever failed here, nothing may run without the lock.
            self._end_all()
            raise

    def _end_all(self) -> None:
        """Kill all; return when none is left, or when waiting for unkillable processes is pointless."""
        began, empty = now(), 0
        # One empty listing may have missed a process that was forked meanwhile.
        while empty < _PASSES and now() < max(began + KILL_TIMEOUT, self._until):
            left = self._shim.tree.send(signal.SIGKILL)
            empty = 0 if left else empty + 1
            self._tell()
            self._signals.wait(_SHORTEST_SLEEP)
        self._over = True

    def _tell(self) -> None:
        until = now() + self._hold.remaining()
        # Two computations of the same end differ by the time between two readings of the clock; an end in the past
        # counts as now.
        if until > max(self._until, now()) + _RESOLUTION:
            self._until = until
            self._pipe.send("until", until)
        if self._hold.lost and not self._lost:
            self._lost = True
            self._until = now() + self._policy.threshold
            self._pipe.send("lost")

    def _pause(self) -> float:
        """Return how many seconds to sleep: the shim must hear of renewals long before it would end the command."""
        left = self._until - self._policy.threshold - now()
        return min(max(left * _SHARE, _SHORTEST_SLEEP), LONGEST_SLEEP)

    def _hear(self, what: str, *rest: Any) -> None:
        if what == "running":
            (command,) = rest
            self._shim.tree.lead(command, self._group)
            self._runs = True
        elif what == "left":
            numbers = ", ".join(map(str, *rest))
            self._say(f"can't end these processes of the command; keeping the lock while renewals succeed: {numbers}")
        elif what == "over":
            self.status, self.reason, self.errno = rest
            self._over = True
