"""The shim's side: the process that enforces the deadline of the command that `redsync lock` runs.

It can't be stopped along with `redsync lock`: it has its own process group, does not use the terminal, and ignores
signals that end or stop programs. Its own session would separate it further, but then the kernel would treat the
command's own process group as orphaned, and Ctrl-Z would not work there. The shim never waits for `redsync lock`, which
sends it the end of the hold as an instant, again after each renewal. When that instant is near, or `redsync lock` has
ended, the shim ends the command and its descendants. It reports the end only when none of them is left.

It starts the command as its child: in the process group of `redsync lock` if that has the terminal, so that keys reach
both, as they reach all programs of a pipeline; otherwise in the command's own group, so that a signal sent to us
reaches the command and its descendants exactly once, through us.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any, Final, NamedTuple

from redsync.cli.exits import SIGNALLED
from redsync.cli.process_tree import CHILD_SUBREAPER, PARENT_DEATH_SIGNAL, ProcessTree, set_option

now: Callable[[], float] = (
    # The clock of the leases: it runs while the machine sleeps.
    partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
)

# The reasons to end the command, as told to the user.
LOST: Final = "ended the command: the lock was lost"
LATE: Final = "ended the command: the lock could not be renewed and was about to be lost"
LONG: Final = "ended the command: --max-hold has passed"
DESERTED: Final = "ended the command: the process that enforces its deadline had ended"
BEHIND: Final = "ended processes that the command left running"


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
                yield self._end.recv()
            except (EOFError, OSError):
                self.closed = True


def unblocked_pipe() -> tuple[int, int]:
    """Return both ends of a pipe for a signal handler, neither of which blocks."""
    ends = os.pipe()
    for end in ends:
        os.set_blocking(end, False)
    return ends


class Policy(NamedTuple):
    """When to end a command, and how.

    Attributes:
        ends_lost: True if a lost hold ends the command.
        kill_after: Seconds from SIGTERM to SIGKILL.
        margin: Seconds from SIGKILL to the end of validity, so that the command ends in time.
        max_hold: Seconds after which to end the command in any case; infinity for never.
    """

    ends_lost: bool
    kill_after: float
    margin: float
    max_hold: float = math.inf

    @property
    def threshold(self) -> float:
        """Seconds of validity left when the end of the command begins."""
        return self.margin + self.kill_after


class Schedule:
    """When a command gets SIGTERM, and when SIGKILL.

    All times are instants of one clock that both processes read, never durations, so a message that arrives late,
    because one side was paused, postpones nothing. Each renewal postpones the end of the hold (`until`). If renewal
    fails, the command gets SIGTERM when `kill_after` plus a margin is left, and SIGKILL when only the margin is left. A
    sudden loss (the lock was force-released, or this machine slept) ends the command as soon as it is known.

    Attributes:
        until: The end of its hold.
        due: For each reason to end the command the instant from which it holds; `LATE` follows from `until`.
        reason: Why its end has begun, one of this module's constants; None if it has not begun.
    """

    def __init__(self, policy: Policy, until: float, began: float) -> None:
        self.until = until
        self.due: Final = {LONG: began + policy.max_hold}
        self.reason: str | None = None
        self._policy = policy
        self._kill_at = math.inf

    def look(self, instant: float) -> bool:
        """Begin the end if it is due; return True if this call began it."""
        due, reason = self._first
        if self.reason is not None or instant < due:
            return False
        self.reason = reason
        self._kill_at = instant + self._policy.kill_after
        return True

    @property
    def _first(self) -> tuple[float, str]:
        """The first instant at which there is a reason to end the command, and this reason."""
        late = self.until - self._policy.threshold if self._policy.ends_lost else math.inf
        return min((late, LATE), *((instant, reason) for reason, instant in self.due.items()))

    @property
    def kill_at(self) -> float:
        """The instant at which to kill; infinity while no end has begun."""
        # If the hold has ended already, a faster kill is pointless.
        if self.reason in (None, LOST) or not self._policy.ends_lost:
            return self._kill_at
        return min(self._kill_at, self.until - self._policy.margin)

    @property
    def next(self) -> float:
        """The next instant at which something may be due."""
        return self._first[0] if self.reason is None else self.kill_at


_IGNORED: Final = (
    *(signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT),
    *(signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF),
)
"""Signals that would end or stop the shim; `redsync lock` forwards those for the command itself."""

LONGEST_SLEEP: Final = 1.0  # the longest sleep in seconds: timers stop while the machine sleeps, leases do not
_POLL: Final = 0.01
KILL_TIMEOUT: Final = 2.0  # seconds for killed processes to end: after that we take them for unkillable


class Shim:
    """Waits for the order to start, starts the command, and ends when none of its processes is left."""

    def __init__(self, pipe: Pipe) -> None:
        """Prepare the command's start."""
        self._pipe = pipe
        for number in _IGNORED:
            signal.signal(number, signal.SIG_IGN)
        self._children, writer = unblocked_pipe()
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._tree = ProcessTree()
        set_option(CHILD_SUBREAPER, 1)
        self._policy: Policy
        self._schedule: Schedule
        self._process: subprocess.Popen[Any]
        self._status: int | None = None
        self._killed_at = math.inf
        self._told_left = False

    def run(self) -> None:
        """Wait for the order to start, and watch the command from its start to its end."""
        wait([self._pipe.fileno()])
        order = next(self._pipe.receive(), None)
        if order is not None and self._begin(*order):
            while not self._turn():
                pass

    def _begin(self, policy: Policy, until: float, group: int, *command: Any) -> bool:
        """Start the command if there is time left; return whether it runs."""
        self._policy = policy
        self._schedule = Schedule(policy, until, now())
        if self._schedule.look(now()):
            self._pipe.send("over", 0, LATE, 0)
            return False
        try:
            self._launch(group, *command)
        except OSError as error:
            self._pipe.send("over", 0, None, error.errno)
            return False
        self._tree.lead(self._process.pid, group)
        # A reader of the command's output must not wait for our end.
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for stream in range(3):
            os.dup2(nothing, stream)
        self._pipe.send("running", self._process.pid)
        # `_launch` has killed a command that did not start in time, even if the pipe has renewals by now.
        self._decide(now())
        return True

    def _launch(
        self, group: int, command: Sequence[str], environment: Mapping[str, str], ignored: Collection[int]
    ) -> None:
        """Start the command, which must ignore those signals, in its own process group if `group` is 0.

        Raises:
            OSError: It can't be executed.
        """
        parent = os.getpid()

        def prepare() -> None:
            if self._policy.ends_lost:
                set_option(PARENT_DEATH_SIGNAL, signal.SIGKILL)
                if os.getppid() != parent:
                    os._exit(0)
            for each in (signal.SIGCHLD, *_IGNORED):
                signal.signal(each, signal.SIG_IGN if each in ignored else signal.SIG_DFL)

        start = partial(subprocess.Popen, env=environment, close_fds=False, process_group=group, preexec_fn=prepare)
        # A command that was stopped before it started, or waits for a slow disk, must not start once another owner may
        # have the lock.
        signal.signal(signal.SIGALRM, lambda *_: self._tree.send(signal.SIGKILL))
        signal.setitimer(signal.ITIMER_REAL, min(max(self._schedule.next - now(), _POLL), 1e6))
        try:
            self._process = start(command)
        except OSError as error:
            if error.errno != errno.ENOEXEC:
                raise
            # A script without `#!`: a shell runs it, as for env(1) and flock(1).
            self._process = start(["/bin/sh", "-c", 'exec "$0" "$@"', *command])
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, signal.SIG_IGN)

    def _turn(self) -> bool:
        """Do what is due, then sleep; return True when all is over."""
        self._reap()
        for words in self._pipe.receive():
            self._hear(*words)
        instant = now()
        if not self._tree.gone:
            self._decide(instant)
        # While unkillable processes run, keep the lock as long as renewals succeed; after that, waiting is pointless.
        has_lock = self._schedule.reason != LOST and instant < self._schedule.until
        if self._tree.gone or (instant >= self._killed_at + KILL_TIMEOUT and not has_lock):
            self._pipe.send("over", self._status or 0, self._schedule.reason, 0)
            return True
        pause = self._schedule.next - instant
        if instant >= self._killed_at:
            pause = (instant - self._killed_at) / 10  # those that can't be killed, more and more rarely
        files = [self._children] if self._pipe.closed else [self._children, self._pipe.fileno()]
        if wait(files, min(max(pause, _POLL), LONGEST_SLEEP)):
            with contextlib.suppress(BlockingIOError):
                os.read(self._children, 4096)
        return False

    def _hear(self, what: str, *rest: Any) -> None:
        if what == "until":
            (self._schedule.until,) = rest
        elif what == "lost" and self._policy.ends_lost:
            self._schedule.due[LOST] = -math.inf  # it comes first

    def _decide(self, instant: float) -> None:
        if self._pipe.closed and self._policy.ends_lost:
            self._schedule.due.setdefault(DESERTED, instant)
        if self._schedule.look(instant):
            self._tree.send(signal.SIGTERM)
            self._tree.send(signal.SIGCONT)  # to those that are stopped
        if instant >= min(self._killed_at, self._schedule.kill_at):
            self._killed_at = min(self._killed_at, instant)
            left = self._tree.send(signal.SIGKILL)
            if instant >= self._killed_at + KILL_TIMEOUT and not self._told_left:
                self._told_left = True
                self._pipe.send("left", left)

    def _reap(self) -> None:
        for number, status in self._tree.reap():
            if number == self._process.pid:
                code = self._process.returncode = os.waitstatus_to_exitcode(status)
                self._status = SIGNALLED - code if code < 0 else code
                self._schedule.due[BEHIND] = now() + self._policy.kill_after
