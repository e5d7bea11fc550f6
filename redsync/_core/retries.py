"""Retries: when waiters that found no quorum may ask again, so that thousands of them don't keep the nodes down.

While no quorum answers, each waiter of a client would ask several times a second. Thousands of them would keep the
process too busy to reconnect to nodes that are back, and would flood these with commands. So the waiters of a client
stand in one queue, and a *window* limits how many tries may be under way at a time:

* a try that again finds no quorum halves the window, its waiter joins the end of the queue, and no other waiter goes
  for `_PACE` seconds. So in an outage one waiter at a time asks, at most a hundred a second, each in its turn;
* a try that was answered, by grants or refusals, widens the window by one. So it doubles with every round trip, up to
  `_WIDEST`, for as long as the nodes keep up.

Nodes that are down, hung, overloaded, in quarantine, or that answer with errors are treated alike: only whether a try
was answered counts. Waiters whose tries can't succeed (a lease too short for these nodes) delay no others, because they
go to the end of the queue.

Pure arithmetic: the driver has the clock, does the sleeping, and owns the mutex under which it calls all of this.
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
"""The most tries under way at a time: five thousand a second at 50 ms per round trip."""

_LONGEST_TRY = 1.0
"""Seconds after which the queue no longer waits for a try: its thread has stalled, or its end was lost."""


class RetryQueue(Generic[T]):
    """The waiters of one client that want to ask again.

    Attributes:
        window: The most tries that may be under way at a time.
    """

    def __init__(self, wake: Callable[[T], None]) -> None:
        """Make an empty queue; `wake(waiter)` makes a waiter look, because it may go or is now the first."""
        self._wake: Final = wake
        self._waiting: Final[OrderedDict[T, float]] = OrderedDict()  # In order of joining: the earliest instant.
        self._going: Final[OrderedDict[T, float]] = OrderedDict()  # In order of going: since when.
        self._paced_until = -math.inf
        self.window = 1

    def join(self, waiter: T, ready_at: float, now: float) -> None:
        """Queue for a turn after a try that found no quorum; the turn comes at `ready_at` at the earliest."""
        returns = self._going.pop(waiter, None) is not None
        self._waiting[waiter] = ready_at
        if returns:
            self.window = max(self.window // 2, 1)
            self._paced_until = now + _PACE
            self._let_go(now)

    def look(self, waiter: T, now: float) -> float | None:
        """Return when to look again: None if it is the waiter's turn; infinity if the queue will wake it."""
        at = self._next_look(waiter)
        if at is not None and at <= now:
            self._let_go(now)
            at = self._next_look(waiter)
        return at

    def give_up(self, waiter: T, now: float) -> None:
        """Stop waiting; no effect for a waiter that is not in the queue."""
        if self._waiting.pop(waiter, None) is not None:
            self._go_on(now)

    def end(self, waiter: T, now: float) -> None:
        """End a turn whose try was answered; no effect if the turn has ended already."""
        if self._going.pop(waiter, None) is not None:
            self.window = min(self.window + 1, _WIDEST)
        # If an interruption struck in `give_up`, it has not let the next waiter go.
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
        """Let the waiters go whose turn it is, and wake the first of the others, so that it looks in time."""
        waiting, going = self._waiting, self._going
        while going and next(iter(going.values())) + _LONGEST_TRY <= now:
            going.popitem(last=False)
        while waiting:
            first, ready_at = next(iter(waiting.items()))
            if len(going) >= self.window or max(ready_at, self._paced_until) > now:
                self._wake(first)
                return
            # In this order: after an interruption the waiter is woken, or the others continue once its turn has lasted
            # too long.
            going[first] = now
            self._wake(first)
            del waiting[first]
