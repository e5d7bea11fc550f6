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
import math
import os
import signal
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, Final, NamedTuple, NoReturn

from redsync.cli.exits import SIGNALLED
from redsync.cli.process_tree import PARENT_DEATH_SIGNAL, ProcessTree, set_option
from redsync.cli.signals import Pipe, is_ready

# Python ignores these signals from its start; programs do not expect that.
_RESTORED: Final = (signal.SIGPIPE, *(getattr(signal, name) for name in ("SIGXFSZ",) if hasattr(signal, name)))

now: Callable[[], float] = (
    # The clock of the leases: it runs while the machine sleeps.
    partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
)

LOST: Final = "lost"
"""Reason to end the command: its lock was lost."""
LATE: Final = "late"
"""Reason to end the command: its lock was about to be lost."""
LONG: Final = "long"
"""Reason to end the command: `--max-hold` has passed."""
DESERTED: Final = "deserted"
"""Reason to end the command: the process that renews the lock has ended."""
BEHIND: Final = "behind"
"""Reason to end processes that the command left running: their time to end by themselves has passed."""


def margin_of(lease: float) -> float:
    """Return how many seconds before the end of validity to send SIGKILL, so that the command ends in time."""
    return min(0.5, lease / 10)


class Policy(NamedTuple):
    """When to end a command, and how.

    Attributes:
        ends_lost: True if a lost hold ends the command.
        kill_after: Seconds from SIGTERM to SIGKILL.
        margin: Seconds from SIGKILL to the end of validity.
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
        reason: Why its end has begun, one of this module's constants; None if it has not begun.
    """

    def __init__(self, policy: Policy, until: float, began: float) -> None:
        self.until = until
        self.reason: str | None = None
        self._policy = policy
        self._too_long = began + policy.max_hold
        self._kill_at = math.inf

    def look(self, instant: float) -> bool:
        """Begin the end if it is due; return True if this call began it."""
        if self.reason is not None:
            return False
        if self._policy.ends_lost and instant >= self.until - self._policy.threshold:
            self.begin(LATE, instant)
        elif instant >= self._too_long:
            self.begin(LONG, instant)
        return self.reason is not None

    def begin(self, reason: str, instant: float) -> None:
        """Begin the end for that reason."""
        self.reason = reason
        self._kill_at = instant + self._policy.kill_after

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
        if self.reason is not None:
            return self.kill_at
        return min(self._too_long, self.until - self._policy.threshold if self._policy.ends_lost else math.inf)


def _launch(
    command: list[str],
    environment: Mapping[str, str],
    *,
    group: int,
    handled: Collection[int],
    tied: bool,
    until: float,
) -> int:
    """Start a command; return its process id.

    Args:
        command: The command and its arguments.
        environment: Its whole environment.
        group: The process group that it joins; 0 for its own.
        handled: Signals to reset to their default action.
        tied: Kill the command if the calling process ends first.
        until: Kill the command if it has not started by this instant.

    Raises:
        OSError: The command can't be executed.
    """
    reader, writer = os.pipe()
    parent = os.getpid()
    number = os.fork()
    if not number:
        try:
            os.setpgid(0, group)
            if tied:
                set_option(PARENT_DEATH_SIGNAL, signal.SIGKILL)
                if os.getppid() != parent:
                    os._exit(0)
            for each in (*handled, *_RESTORED):
                signal.signal(each, signal.SIG_DFL)
            os.execvpe(command[0], command, environment)  # noqa: S606
        except BaseException as error:
            _fail(writer, error)
    os.close(writer)
    # A command that was stopped before it started, or waits for a slow disk, must not start once another owner may have
    # the lock.
    if not is_ready(until - now(), reader):
        os.kill(number, signal.SIGKILL)
    with open(reader, "rb") as told:
        failure = told.read()
    if failure:
        os.waitpid(number, 0)
        raise OSError(int(failure), os.strerror(int(failure)), command[0])
    return number


def _fail(writer: int, error: BaseException) -> NoReturn:
    """Report to the parent why the command can't be executed, and end this child."""
    number = error.errno if isinstance(error, OSError) else None
    os.write(writer, b"%d" % (number or 5))  # EIO
    os._exit(1)


_IGNORED: Final = (
    *(signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT),
    *(signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF),
)
"""Signals that would end or stop the shim. Signals for the command come over the pipe."""

_LONGEST_SLEEP: Final = 1.0
"""The longest sleep in seconds: timers stop while the machine sleeps, leases do not."""

_POLL: Final = 0.01
_KILL_TIMEOUT: Final = 2.0
"""Seconds for killed processes to end: after that we take them for unkillable."""

_POLL_OF_THE_REST: Final = 0.2


class Shim:
    """Waits for the order to start, starts the command, and ends when none of its processes is left."""

    def __init__(
        self, pipe: Pipe, command: list[str], environment: Mapping[str, str], ignored: Collection[int]
    ) -> None:
        """Prepare the command's start; `ignored` are the signals that the command must ignore."""
        self._pipe = pipe
        self._command = command
        self._environment = dict(environment)
        self._handled = {signal.SIGCHLD, *_IGNORED} - set(ignored)
        for number in _IGNORED:
            signal.signal(number, signal.SIG_IGN)
        self._children, writer = os.pipe()
        for end in (self._children, writer):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._tree = ProcessTree()
        self._tree.adopt()
        self._policy: Policy
        self._schedule: Schedule
        self._leader = 0
        self._group = 0
        self._status: int | None = None
        self._ended_at = 0.0
        self._killed_at = math.inf
        self._told_left = False

    def run(self) -> None:
        """Watch the command from its start to its end."""
        while not self._leader:
            is_ready(math.inf, self._pipe)
            for words in self._pipe.receive():
                if self._leader:
                    self._obey(*words)
                elif not self._begin(*words[1:]):
                    return
            if self._pipe.closed and not self._leader:
                return
        while not self._turn():
            pass

    def _begin(self, group: int, until: float, owner: str, token: int | None, policy: Policy) -> bool:
        """Start the command if there is time left; return whether it runs."""
        self._policy = policy
        self._schedule = Schedule(policy, until, now())
        if self._schedule.look(now()):
            self._pipe.send("over", 0, LATE)
            return False
        self._environment["REDSYNC_OWNER"] = owner
        if token is not None:
            self._environment["REDSYNC_FENCING_TOKEN"] = str(token)
        try:
            self._leader = _launch(
                self._command,
                self._environment,
                group=group,
                handled=self._handled,
                tied=self._policy.ends_lost,
                until=self._schedule.next,
            )
        except OSError as error:
            self._pipe.send("unable", error.errno)
            return False
        self._group = group or self._leader
        known = self._leader if group else -self._leader
        self._tree.lead(known)
        _leave_streams()
        self._pipe.send("running", known)
        # `_launch` has killed a command that did not start in time, even if the pipe has renewals by now.
        self._decide(now())
        return True

    def _turn(self) -> bool:
        """Do what is due, then sleep; return True when all is over."""
        self._reap()
        for words in self._pipe.receive():
            self._obey(*words)
        instant = now()
        self._decide(instant)
        if self._is_over(instant):
            self._pipe.send("over", self._status or 0, self._schedule.reason)
            return True
        self._sleep(instant)
        return False

    def _obey(self, what: str, *rest: Any) -> None:
        if what == "until":
            (self._schedule.until,) = rest
        elif what == "lost" and self._schedule.reason is None and self._policy.ends_lost:
            self._end(LOST, now())
        elif what == "forward":
            # The command's group gets the signal, as from a terminal; after its end, the processes that it left.
            (number,) = rest
            self._tree.send(number, None if self._status is not None else self._group)

    def _decide(self, instant: float) -> None:
        schedule = self._schedule
        if schedule.reason is None:
            if self._pipe.closed and self._policy.ends_lost:
                self._end(DESERTED, instant)
            elif instant >= self._patient_until:
                self._end(BEHIND, instant)
            elif schedule.look(instant):
                self._ask()
        if instant >= min(self._killed_at, schedule.kill_at):
            self._kill(instant)

    @property
    def _patient_until(self) -> float:
        """The instant until which processes that the command left may run."""
        if self._status is None or self._tree.gone:
            return math.inf
        return self._ended_at + self._policy.kill_after

    def _end(self, reason: str, instant: float) -> None:
        self._schedule.begin(reason, instant)
        self._ask()

    def _ask(self) -> None:
        """Send SIGTERM to all, even to those that are stopped."""
        self._tree.send(signal.SIGTERM)
        self._tree.send(signal.SIGCONT)

    def _kill(self, instant: float) -> None:
        self._killed_at = min(self._killed_at, instant)
        left = self._tree.send(signal.SIGKILL)
        if instant >= self._killed_at + _KILL_TIMEOUT and not self._told_left:
            self._told_left = True
            self._pipe.send("left", left)

    def _is_over(self, instant: float) -> bool:
        # While unkillable processes run, keep the lock as long as renewals succeed; after that, waiting is pointless.
        has_lock = self._schedule.reason != LOST and instant < self._schedule.until
        return self._tree.gone or (instant >= self._killed_at + _KILL_TIMEOUT and not has_lock)

    def _reap(self) -> None:
        for number, status in self._tree.reap():
            if number == self._leader:
                code = os.waitstatus_to_exitcode(status)
                self._status = SIGNALLED - code if code < 0 else code
                self._ended_at = now()

    def _sleep(self, instant: float) -> None:
        """Wait for a message, a child's end, or the next instant at which something is due."""
        until = self._schedule.next
        if self._schedule.reason is None:
            until = min(until, self._patient_until)
        pause = min(max(until - instant, 0.0), _LONGEST_SLEEP)
        if instant >= self._killed_at:
            pause = _POLL if instant < self._killed_at + _KILL_TIMEOUT else _POLL_OF_THE_REST
        if is_ready(pause, self._children, *(() if self._pipe.closed else (self._pipe,))):
            with contextlib.suppress(BlockingIOError):
                os.read(self._children, 4096)


def _leave_streams() -> None:
    """Close our input and output: a reader of the command's output must not wait for the shim's end."""
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for stream in range(3):
        os.dup2(nothing, stream)
