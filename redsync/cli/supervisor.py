"""Runs the command of `redsync lock`: tells the keeper the deadline, forwards signals, and stops along with it."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Final

from redsync.cli.child import FRONT, OWN, SHARED
from redsync.cli.deadlines import DESERTED, Policy, now
from redsync.cli.family import is_alone
from redsync.cli.signals import FORWARDED, KEYS, Signals
from redsync.cli.terminal import foreground, give
from redsync.cli.wire import NOTHING

if TYPE_CHECKING:
    from redsync import Hold
    from redsync.cli.keeper import Keeper

__all__ = ["Supervisor"]

_SHARE: Final = 0.2
_SHORTEST_SLEEP: Final = 0.02
_LONGEST_SLEEP: Final = 1.0
_RESOLUTION: Final = 0.001
_KILL_TIMEOUT: Final = 2.0
_PASSES: Final = 2

_BY_TERMINAL: Final = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
"""Signals with which the terminal stops a program."""


def _place() -> str:
    """Return the command's process group, as a constant of `child`."""
    if foreground() != os.getpgrp():
        return OWN
    return FRONT if is_alone() else SHARED


def _end_of(hold: Hold) -> float:
    """Return the instant at which a hold ends, or slightly before that."""
    before = now()
    return before + hold.remaining()


class Supervisor:
    """Watches a command, through its keeper, and the hold that it runs under.

    Attributes:
        status: The command's exit status, 128 + n if signal n ended it.
        errno: Why the command could not be executed; 0 if it could.
        reason: Why redsync ended the command, a constant of `deadlines`; None if it did not.
    """

    def __init__(
        self, keeper: Keeper, hold: Hold, signals: Signals, policy: Policy, say: Callable[[str], object]
    ) -> None:
        self.status = 0
        self.errno = 0
        self.reason: str | None = None
        self._keeper = keeper
        self._wire = keeper.wire
        self._hold = hold
        self._signals = signals
        self._policy = policy
        self._say = say
        self._told_left = False
        self._shared = False
        self._group = 0
        self._until = 0.0
        self._lost = False
        self._resumed = 0
        self._over = False

    def run(self) -> None:
        """Run the command; return when it and all its descendants have ended."""
        place = _place()
        self._shared = place == SHARED
        self._until = _end_of(self._hold)
        try:
            self._keeper.begin(self._hold, self._until, place, self._policy)
            self._watch()
        except BaseException:
            # Whatever failed here, nothing may run without the lock.
            self._end_all()
            raise
        finally:
            if self._group and foreground() == self._group and not self._shared:
                give(os.getpgrp())

    def _watch(self) -> None:
        while not self._over:
            self._tell()
            for number in self._signals.wait(self._pause(), self._wire):
                self._react(number)
            for words in self._wire.receive():
                self._hear(words)
            if self._wire.closed and not self._over:
                self.reason = DESERTED
                self._end_all()
            elif not self._over and now() >= self._too_late:
                self._keeper.enforce()

    def _end_all(self) -> None:
        """Kill all; return when none is left, or when waiting for unkillable processes is pointless."""
        began, empty = now(), 0
        # One empty listing may have missed a process that was forked meanwhile.
        while empty < _PASSES and now() < max(began + _KILL_TIMEOUT, self._too_late):
            left = self._keeper.strike()
            empty = 0 if left else empty + 1
            if now() >= began + _KILL_TIMEOUT:
                self._tell_left(left)
            self._tell()
            self._signals.wait(_SHORTEST_SLEEP)
        self._over = True

    def _tell(self) -> None:
        until = _end_of(self._hold)
        # Two computations of the same end differ by the time between two readings of the clock; an end in the past
        # counts as now.
        if until > max(self._until, now()) + _RESOLUTION:
            self._until = until
            self._wire.send("until", until)
        if self._hold.lost and not self._lost:
            self._lost = True
            self._until = now() + self._policy.threshold
            self._wire.send("lost")

    @property
    def _too_late(self) -> float:
        """The instant by which the keeper has ended all, unless it was stopped."""
        return self._until if self._policy.heeds_loss else math.inf

    def _pause(self) -> float:
        """Return how many seconds to sleep: the keeper must hear of renewals long before it would end the command."""
        left = self._until - self._policy.threshold - now()
        return min(max(left * _SHARE, _SHORTEST_SLEEP), _LONGEST_SLEEP)

    def _hear(self, words: Sequence[str]) -> None:
        what, *rest = words
        if what == "running":
            self._group = int(rest[0])
            if not self._shared:
                self._keeper.lead(self._group)
        elif what == "stopped":
            self._follow(int(rest[0]), int(rest[1]))
        elif what == "unable":
            self.errno = int(rest[0])
            self._over = True
        elif what == "left":
            self._tell_left(rest)
        elif what == "over":
            self.status = int(rest[0])
            self.reason = None if rest[1] == NOTHING else rest[1]
            self._over = True

    def _tell_left(self, left: Collection[object]) -> None:
        if left and not self._told_left:
            self._told_left = True
            numbers = ", ".join(map(str, left))
            self._say(f"can't end these processes of the command; keeping the lock while renewals succeed: {numbers}")

    def _react(self, number: int) -> None:
        if number in FORWARDED:
            # A command in our group has already received a signal that comes from a key of the terminal.
            if not (self._shared and number in KEYS and foreground() == os.getpgrp()):
                self._wire.send("forward", number)
        elif number == signal.SIGTSTP:
            self._stop()
        elif number == signal.SIGCONT:
            self._resume()
        elif number == signal.SIGCHLD:
            self._keeper.look_after()

    def _follow(self, number: int, resumed: int) -> None:
        """React to a stop of the command: if the terminal stopped it, stop too, so that the shell takes over."""
        if resumed == self._resumed and (number in _BY_TERMINAL or foreground() == self._group != os.getpgrp()):
            self._stop()

    def _stop(self) -> None:
        """Stop the command, its descendants and ourselves; continue them all when continued, or if we can't stop."""
        self._wire.send("stop")
        if not self._shared and foreground() == self._group:
            give(os.getpgrp())
        self._signals.stop_ourselves()
        self._resume()

    def _resume(self) -> None:
        if not self._shared and self._group and foreground() == os.getpgrp() and is_alone():
            give(self._group)
        self._resumed += 1
        self._wire.send("resume", self._resumed)
