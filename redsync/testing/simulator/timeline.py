"""Virtual time: the order of future events, and clocks that may disagree.

True time is in seconds since the simulation began. Only the simulation knows it: programs and nodes read their own
clocks. Entries due at one instant happen in the order in which they were scheduled, so a run has only one order.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeAlias

__all__ = ["Clock", "Entry", "Timeline"]

_push = heapq.heappush

Entry: TypeAlias = tuple[float, int, Any, Any, tuple[Any, ...] | None]
"""True instant, running number, host, and the action: a function and its arguments, or a timer and None."""


class Timeline:
    """The future, in order.

    Attributes:
        now: The present instant of true time, in seconds.
        entries: A heap of future entries.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.entries: list[Entry] = []
        self._number: Final = itertools.count()

    def schedule(self, when: float, concerned: Any, action: Any, args: tuple[Any, ...] | None = ()) -> None:
        """Schedule an action at an instant, or at once if the instant has passed."""
        when = max(when, self.now)
        _push(self.entries, (when, next(self._number), concerned, action, args))

    def after(self, seconds: float, action: Callable[..., object], *args: Any) -> None:
        """Schedule an action that concerns no machine, some seconds from now."""
        self.schedule(self.now + seconds, None, action, args)

    def replace(self, entries: Iterable[Entry]) -> None:
        """Replace all entries."""
        self.entries[:] = entries
        heapq.heapify(self.entries)


class Clock:
    """A clock that may go wrong.

    Attributes:
        rate: The seconds that it counts per second of true time.
    """

    def __init__(self, timeline: Timeline, start: float = 0.0, rate: float = 1.0) -> None:
        self._timeline: Final = timeline
        self._true = timeline.now
        self._local = start
        self.rate = rate

    def now(self) -> float:
        """Return the time that it shows, in seconds."""
        return self._local + (self._timeline.now - self._true) * self.rate

    def instant(self, local: float) -> float:
        """Return the first instant of true time at which it shows `local` or more, at its present rate."""
        true = self._true + (local - self._local) / self.rate
        while self._local + (true - self._true) * self.rate < local:
            true = math.nextafter(true, math.inf)
        return true

    def change(self, *, rate: float | None = None, jump: float = 0.0) -> None:
        """Continue at another rate, or from another time."""
        self._local, self._true = self.now() + jump, self._timeline.now
        self.rate = self.rate if rate is None else rate
