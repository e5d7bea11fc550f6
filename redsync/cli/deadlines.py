"""When the command of `redsync lock` gets SIGTERM, and when SIGKILL.

All times are instants of one clock that both processes read, never durations, so a message that arrives late, because
one side was paused, postpones nothing. Each renewal postpones the end of the hold (`until`). If renewal fails, the
command gets SIGTERM when `kill_after` plus a margin is left, and SIGKILL when only the margin is left. A sudden loss
(the lock was force-released, or this machine slept) ends the command as soon as it is known.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

__all__ = ["BEHIND", "DESERTED", "LATE", "LONG", "LOST", "Policy", "Schedule", "margin_of", "now"]

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
        on_lost: The response to a lost hold: "term" (SIGTERM, then SIGKILL), "kill", or "ignore".
        kill_after: Seconds from SIGTERM to SIGKILL.
        margin: Seconds from SIGKILL to the end of validity.
        max_hold: Seconds after which to end the command in any case; infinity for never.
    """

    on_lost: str
    kill_after: float
    margin: float
    max_hold: float = math.inf

    @property
    def threshold(self) -> float:
        """Seconds of validity left when the end of the command begins."""
        return self.margin + (self.kill_after if self.on_lost == "term" else 0.0)

    @property
    def heeds_loss(self) -> bool:
        """True if a lost hold ends the command."""
        return self.on_lost != "ignore"


class Schedule:
    """The schedule of one command's end.

    Attributes:
        until: The end of its hold.
        reason: Why its end has begun, one of this module's constants; None if it has not begun.
        asks: True if its end begins with SIGTERM.
    """

    def __init__(self, policy: Policy, until: float, began: float) -> None:
        self.until = until
        self.reason: str | None = None
        self.asks = False
        self._policy = policy
        self._too_long = began + policy.max_hold
        self._kill_at = math.inf

    def look(self, instant: float) -> bool:
        """Begin the end if it is due; return True if this call began it."""
        if self.reason is not None:
            return False
        if self._policy.heeds_loss and instant >= self.until - self._policy.threshold:
            self.begin(LATE, instant)
        elif instant >= self._too_long:
            self.begin(LONG, instant)
        return self.reason is not None

    def begin(self, reason: str, instant: float) -> None:
        """Begin the end for that reason."""
        self.reason = reason
        self.asks = self._policy.on_lost != "kill" or reason in (LONG, BEHIND)
        self._kill_at = instant + (self._policy.kill_after if self.asks else 0.0)

    @property
    def kill_at(self) -> float:
        """The instant at which to kill; infinity while no end has begun."""
        # If the hold has ended already, a faster kill is pointless.
        if self.reason in (None, LOST) or not self._policy.heeds_loss:
            return self._kill_at
        return min(self._kill_at, self.until - self._policy.margin)

    @property
    def next(self) -> float:
        """The next instant at which something may be due."""
        if self.reason is not None:
            return self.kill_at
        return min(self._too_long, self.until - self._policy.threshold if self._policy.heeds_loss else math.inf)
