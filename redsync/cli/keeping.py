"""The keeper's side: the process that enforces the deadline of the command that `redsync lock` runs.

It can't be stopped along with `redsync lock`: it has its own process group, does not use the terminal, and ignores
signals that end or stop programs. Its own session would separate it further, but then the kernel would treat the
process group of the command, its child, as orphaned, and Ctrl-Z would not work there. The keeper never waits for
`redsync lock`, which sends it the end of the hold as an instant, again after each renewal. When that instant is near,
or `redsync lock` has ended, the keeper ends the command and its descendants. It reports the end only when none of them
is left.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from redsync.cli.child import SHARED, launch
from redsync.cli.deadlines import BEHIND, DESERTED, LATE, LOST, Policy, Schedule, now
from redsync.cli.exits import SIGNALLED
from redsync.cli.family import Family
from redsync.cli.wire import NOTHING, Wire, is_ready

if TYPE_CHECKING:
    from redsync.cli.cgroup import Cgroup

__all__ = ["Keeping"]

_IGNORED: Final = (
    *(signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT),
    *(signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF),
)
"""Signals that would end or stop the keeper. Signals for the command come over the wire."""

_ASKING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
"""Forwarded signals that ask a program to end."""

_LONGEST_SLEEP: Final = 1.0
"""The longest sleep in seconds: timers stop while the machine sleeps, leases do not."""

_POLL: Final = 0.01
_KILL_TIMEOUT: Final = 2.0
"""Seconds for killed processes to end: after that we take them for unkillable."""

_POLL_OF_THE_REST: Final = 0.2
_TIME_TO_STOP: Final = 0.1
"""Seconds for a full-screen program to restore the terminal before it is stopped in any case."""


class Keeping:
    """Waits for the order to start, starts the command, and ends when none of its processes is left."""

    def __init__(
        self, wire: Wire, command: list[str], environment: Mapping[str, str], cgroup: Cgroup, spurned: Collection[int]
    ) -> None:
        """Prepare the command's start; `spurned` are the signals that the command must ignore."""
        self._wire = wire
        self._command = command
        self._environment = dict(environment)
        self._cgroup = cgroup
        self._handled = {signal.SIGCHLD, *_IGNORED} - set(spurned)
        for number in _IGNORED:
            signal.signal(number, signal.SIG_IGN)
        self._children, writer = os.pipe()
        for end in (self._children, writer):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._family = Family()
        self._family.adopt()
        self._policy: Policy
        self._schedule: Schedule
        self._leader = 0
        self._group = 0
        self._status: int | None = None
        self._ended_at = 0.0
        self._asked: set[int] = set()
        self._pressed = False
        self._halted = False
        self._halt_at = math.inf
        self._resumed = 0
        self._killed_at = math.inf
        self._told_left = False

    def run(self) -> None:
        """Watch the command from its start to its end."""
        try:
            self._keep()
        finally:
            self._cgroup.remove()

    def _keep(self) -> None:
        while not self._leader:
            is_ready(math.inf, self._wire)
            for words in self._wire.receive():
                if self._leader:
                    self._obey(words)
                elif not self._begin(*words[1:]):
                    return
            if self._wire.closed and not self._leader:
                return
        while not self._turn():
            pass

    def _begin(self, place: str, group: str, until: str, owner: str, token: str, *policy: str) -> bool:
        """Start the command if there is time left; return whether it runs."""
        on_lost, *numbers = policy
        self._policy = Policy(on_lost, *map(float, numbers))
        self._schedule = Schedule(self._policy, float(until), now())
        if self._schedule.look(now()):
            self._wire.send("over", 0, LATE)
            return False
        self._environment["REDSYNC_OWNER"] = owner
        if token != NOTHING:
            self._environment["REDSYNC_FENCING_TOKEN"] = token
        try:
            self._leader = launch(
                self._command,
                self._environment,
                place=place,
                group=int(group),
                cgroup=self._cgroup,
                handled=self._handled,
                tied=self._policy.heeds_loss,
                until=self._schedule.next,
            )
        except OSError as error:
            self._wire.send("unable", error.errno)
            return False
        self._group = int(group) if place == SHARED else self._leader
        if self._group == self._leader:
            self._family.lead(self._group)
        _leave_streams()
        self._wire.send("running", self._group)
        # `launch` has killed a command that did not start in time, even if the wire has renewals by now.
        self._decide(now())
        return True

    def _turn(self) -> bool:
        """Do what is due, then sleep; return True when all is over."""
        self._reap()
        for words in self._wire.receive():
            self._obey(words)
        instant = now()
        self._decide(instant)
        if self._is_over(instant):
            self._wire.send("over", self._status or 0, self._told_reason())
            return True
        self._sleep(instant)
        return False

    def _obey(self, words: Sequence[str]) -> None:
        what, number = words[0], words[1] if len(words) > 1 else "0"
        if what == "until":
            self._schedule.until = float(number)
        elif what == "lost" and self._schedule.reason is None and self._policy.heeds_loss:
            self._end(LOST, now())
        elif what == "forward":
            self._forward(int(number))
        elif what == "stop":
            self._halted = True
            self._halt_at = now() + _TIME_TO_STOP
        elif what == "resume":
            self._halted = False
            self._halt_at = math.inf
            self._resumed = int(number)
            self._family.send(signal.SIGCONT)

    def _forward(self, number: int) -> None:
        # The command's group gets the signal, as from a terminal; after the command's end, the processes that it left.
        reached = self._family.send(number, None if self._status is not None else self._group)
        if number in _ASKING:
            self._asked |= reached

    def _decide(self, instant: float) -> None:
        schedule = self._schedule
        if schedule.reason is None:
            if self._wire.closed and self._policy.heeds_loss:
                self._end(DESERTED, instant)
            elif instant >= self._patient_until:
                self._end(BEHIND, instant)
            elif schedule.look(instant):
                self._ask()
        if instant >= min(self._killed_at, schedule.kill_at):
            self._kill(instant)
        elif instant >= self._halt_at:
            self._halt_at = math.inf
            self._family.halt()

    @property
    def _patient_until(self) -> float:
        """The instant until which processes that the command left may run."""
        if self._status is None or self._family.gone:
            return math.inf
        # If a signal ended the command, the other processes have had that signal too, or should get SIGTERM now.
        was_asked = self._asked and self._status > SIGNALLED
        return self._ended_at + (0.0 if was_asked else self._policy.kill_after)

    def _end(self, reason: str, instant: float) -> None:
        self._schedule.begin(reason, instant)
        self._ask()

    def _ask(self) -> None:
        """Send SIGTERM to all, if the end begins with that."""
        if self._schedule.asks:
            # A process may have ignored an earlier forwarded signal, so send SIGTERM; but of the processes left
            # running, spare those that had such a signal: they may be cleaning up.
            spared = self._asked if self._schedule.reason == BEHIND else ()
            self._pressed = bool(self._family.send(signal.SIGTERM, but=spared))
            self._family.send(signal.SIGCONT)

    def _kill(self, instant: float) -> None:
        self._killed_at = min(self._killed_at, instant)
        self._cgroup.kill()
        left = self._family.send(signal.SIGKILL)
        self._pressed = self._pressed or bool(left)
        if instant >= self._killed_at + _KILL_TIMEOUT and not self._told_left:
            self._told_left = True
            self._wire.send("left", *left)

    def _is_over(self, instant: float) -> bool:
        # While unkillable processes run, keep the lock as long as renewals succeed; after that, waiting is pointless.
        has_lock = self._schedule.reason != LOST and instant < self._schedule.until
        return self._family.gone or (instant >= self._killed_at + _KILL_TIMEOUT and not has_lock)

    def _reap(self) -> None:
        for number, status in self._family.reap():
            if os.WIFSTOPPED(status):
                if number == self._leader and not self._halted:
                    self._wire.send("stopped", os.WSTOPSIG(status), self._resumed)
            elif number == self._leader:
                code = os.waitstatus_to_exitcode(status)
                self._status = SIGNALLED - code if code < 0 else code
                self._ended_at = now()

    def _told_reason(self) -> str:
        reason = self._schedule.reason
        # The processes that the command left may have ended by themselves.
        return NOTHING if reason is None or (reason == BEHIND and not self._pressed) else reason

    def _sleep(self, instant: float) -> None:
        """Wait for a message, a child's end, or the next instant at which something is due."""
        until = self._schedule.next
        if self._schedule.reason is None:
            until = min(until, self._patient_until)
        pause = min(max(min(until, self._halt_at) - instant, 0.0), _LONGEST_SLEEP)
        if instant >= self._killed_at:
            pause = _POLL if instant < self._killed_at + _KILL_TIMEOUT else _POLL_OF_THE_REST
        if is_ready(pause, self._children, *(() if self._wire.closed else (self._wire,))):
            with contextlib.suppress(BlockingIOError):
                os.read(self._children, 4096)


def _leave_streams() -> None:
    """Close our input and output: a reader of the command's output must not wait for the keeper's end."""
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for stream in range(3):
        os.dup2(nothing, stream)
