"""Retries: when those may ask again who found no quorum, so that thousands of them don't keep the nodes down.

While no quorum answers, each waiter of a client would ask several times a second. Some thousand of them would keep the
process so busy that it doesn't get round to connecting the nodes that are back, and those would drown in commands. So
the waiters of a client stand in one queue, and a *window* says how many of them may be on their way at a time:

* a try that finds no quorum again halves the window, joins the queue at its end, and nobody else goes for `_PACE`
  seconds. So in an outage one waiter at a time asks, a hundred a second at most, each in its turn;
* a try that was answered, by grants or refusals, widens the window by one. So it doubles with every round trip, up to
  `_WIDEST`, for as long as the nodes keep up.

The same for nodes that are down, hung, overloaded, in quarantine or answer errors, for nothing is asked but whether a
try had an answer. Nobody stays behind waiters whose tries can't succeed (a lease too short for these nodes), because
those go to the end of the queue.

Pure arithmetic: the driver has the clock, the sleeping, and the mutex under which all of this is called.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

__all__ = ["RetryQueue"]

T = TypeVar("T", bound=Hashable)

_PACE = 0.01
"""Seconds after a try without a quorum before the next waiter goes."""

_WIDEST = 256
"""Waiters on their way at a time, at most: at 50 ms per round trip five thousand a second."""

_LONGEST_TRY = 1.0
"""Seconds after which a try is no longer waited for: its thread stands still, or its end was lost."""


class RetryQueue(Generic[T]):
    """The waiters of one client that wait to ask again.

    Attributes:
        window: How many may be on their way at a time.
    """

    def __init__(self, wake: Callable[[T], None]) -> None:
        """Make it empty; `wake(waiter)` lets one look that may go, or that is the first now."""
        self._wake: Final = wake
        self._waiting: Final[OrderedDict[T, float]] = OrderedDict()  # By order of joining: not before which instant.
        self._going: Final[OrderedDict[T, float]] = OrderedDict()  # By order of going: since when.
        self._paced_until = -math.inf
        self.window = 1

    def join(self, waiter: T, ready_at: float, now: float) -> None:
        """Wait for a turn, after a try that found no quorum; it comes at `ready_at` at the earliest."""
        returns = self._going.pop(waiter, None) is not None
        self._waiting[waiter] = ready_at
        if returns:
            self.window = max(self.window // 2, 1)
            self._paced_until = now + _PACE
            self._let_go(now)

    def look(self, waiter: T, now: float) -> float | None:
        """Return when to look again: never for all but the first, for they are woken. None: it is its turn."""
        at = self._next_look(waiter)
        if at is not None and at <= now:
            self._let_go(now)
            at = self._next_look(waiter)
        return at

    def give_up(self, waiter: T, now: float) -> None:
        """Wait no longer; nothing for one that does not wait."""
        if self._waiting.pop(waiter, None) is not None:
            self._go_on(now)

    def end(self, waiter: T, now: float) -> None:
        """End a turn, as the try was answered; nothing if it has ended already."""
        if self._going.pop(waiter, None) is not None:
            self.window = min(self.window + 1, _WIDEST)
        # An interruption may have struck where it gave up: then nobody has called the next one.
        self._waiting.pop(waiter, None)
        self._go_on(now)

    def _go_on(self, now: float) -> None:
        if not self._waiting and not self._going:
            self.window = 1
        self._let_go(now)

    def _next_look(self, waiter: T) -> float | None:
        if waiter not in self._waiting:
            return None
        first, ready_at = next(iter(self._waiting.items()))
        if waiter is not first:
            return math.inf
        if len(self._going) < self.window:
            return max(ready_at, self._paced_until)
        return next(iter(self._going.values())) + _LONGEST_TRY

    def _let_go(self, now: float) -> None:
        """Let those go whose turn it is, and wake the first of the others: it has to look when its time comes."""
        waiting, going = self._waiting, self._going
        while going and next(iter(going.values())) + _LONGEST_TRY <= now:
            going.popitem(last=False)
        while waiting:
            first, ready_at = next(iter(waiting.items()))
            if len(going) >= self.window or max(ready_at, self._paced_until) > now:
                self._wake(first)
                return
            # In this order: after an interruption it is woken, or the others go on when its turn has lasted too long.
            going[first] = now
            self._wake(first)
            del waiting[first]
