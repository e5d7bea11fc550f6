"""While the command of `redsync lock` runs: forward signals, and end it before its lock may be another's.

The hold is renewed in the background, which moves its end on and on. If that fails, the end comes near. The command is
asked to end (SIGTERM) when `kill_after` and a margin are left, and ended (SIGKILL) when only the margin is. A loss that
nobody could foresee (the lock was taken away by force, this machine slept) ends it as soon as it is known.
"""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass
from typing import Protocol

from redsync.cli.child import Child
from redsync.cli.signals import FORWARDED, Signals

__all__ = ["Guard", "Policy", "TheHold", "margin_of"]

_LONGEST_SLEEP = 1.0
"""Seconds after which to look again in any case: timers stand still while the machine sleeps, leases do not."""


def margin_of(lease: float) -> float:
    """Return for how many seconds a hold must be valid still when its command is killed, so that it ends in time."""
    return min(0.5, lease / 10)


class TheHold(Protocol):
    """What is to be known about a hold."""

    @property
    def lost(self) -> bool:
        """Whether it was lost."""
        ...

    def remaining(self) -> float:
        """Return for how many seconds it may be believed."""
        ...


@dataclass(frozen=True)
class Policy:
    """When to end a command, and how.

    Attributes:
        on_lost: What to do when the hold is lost: "term" (SIGTERM, then SIGKILL), "kill", or "ignore".
        kill_after: Seconds between SIGTERM and SIGKILL.
        margin: For how many seconds the hold must be valid still when SIGKILL is sent.
        max_hold: After how many seconds to end the command in any case; None: never.
    """

    on_lost: str
    kill_after: float
    margin: float
    max_hold: float | None

    @property
    def threshold(self) -> float:
        """How many seconds of validity must be left, or the command is ended."""
        return self.margin + (self.kill_after if self.on_lost == "term" else 0.0)


class Guard:
    """Watches a command and the hold that it runs under.

    Attributes:
        ended_for: Why the command was ended, as the rest of a sentence; None if it was not.
    """

    def __init__(self, child: Child, hold: TheHold, signals: Signals, policy: Policy) -> None:
        self.ended_for: str | None = None
        self._child = child
        self._hold = hold
        self._signals = signals
        self._policy = policy
        now = time.monotonic()
        self._too_long = float("inf") if policy.max_hold is None else now + policy.max_hold
        self._kill_at = float("inf")
        self._too_late = False

    def run(self) -> int:
        """Return the command's exit status when it has ended, of its own accord or not."""
        child = self._child
        while child.poll() is None:
            self._decide(time.monotonic())
            for number in self._signals.wait(self._patience(time.monotonic())):
                self._react(number)
            if child.stopped and child.has_terminal:
                self._stop()
        child.take_terminal()
        if self.ended_for is not None:
            # What it had started is to end in time, too.
            child.clear(self._grace(time.monotonic()))
        assert child.status is not None
        return child.status

    def _decide(self, now: float) -> None:
        """End the command if it is time to."""
        if self.ended_for is None:
            self.ended_for = self._reason(now)
            if self.ended_for is not None:
                self._begin_end(now)
        if self.ended_for is not None and self._grace(now) <= 0:
            self._child.end(signal.SIGKILL)

    def _reason(self, now: float) -> str | None:
        if self._policy.on_lost != "ignore":
            if self._hold.lost:
                return "the lock was lost"
            if self._hold.remaining() <= self._policy.threshold:
                return "the lock could not be renewed and was about to be lost"
        return "it held the lock for too long" if now >= self._too_long else None

    def _begin_end(self, now: float) -> None:
        policy = self._policy
        self._too_late = policy.on_lost == "ignore" or self._hold.lost
        if policy.on_lost == "kill" and now < self._too_long:
            self._kill_at = now
        else:
            self._kill_at = now + policy.kill_after
            self._child.end(signal.SIGTERM)

    def _grace(self, now: float) -> float:
        """Return how many seconds the command has until SIGKILL."""
        left = self._kill_at - now
        # When the hold was over first, there is nothing that could be saved by haste.
        return left if self._too_late else min(left, self._hold.remaining() - self._policy.margin)

    def _patience(self, now: float) -> float:
        """Return how long to sleep until there may be something to decide."""
        if self.ended_for is not None:
            grace = self._grace(now)
            # After SIGKILL only the command's end is to be waited for.
            return min(grace, _LONGEST_SLEEP) if grace > 0 else _LONGEST_SLEEP
        left = self._too_long - now
        if self._policy.on_lost != "ignore":
            left = min(left, self._hold.remaining() - self._policy.threshold)
        return min(left, _LONGEST_SLEEP)

    def _react(self, number: int) -> None:
        if number in FORWARDED:
            self._child.signal(number)
        elif number == signal.SIGTSTP:
            # Ours to pass on when the terminal is not the command's. We may not stop while it runs.
            self._child.signal(signal.SIGSTOP)
            self._stop()
        elif number == signal.SIGCONT and not self._child.stopped:
            self._child.signal(number)

    def _stop(self) -> None:
        """Stop as well, so that the shell takes over; when continued, go on only with a hold that is still valid."""
        self._child.take_terminal()
        self._signals.stop_ourselves()
        self._decide(time.monotonic())
        self._child.resume()
