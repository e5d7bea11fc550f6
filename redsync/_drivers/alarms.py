"""Alarms: wake the sleepers of an event loop at their deadlines, with one timer for all.

Few rounds reach their deadline. With a loop timer for each round, setting and cancelling it would cost as much as the
rest of the round. So a sleeper only writes its deadline into `asleep`, and removes it when it wakes. One timer rings at
the earliest deadline, or before it. Then the sleepers that came since the last time, and still sleep, get an entry in a
heap. Most sleepers never do.

`asleep` keeps its order, so these sleepers are its last: the others have their entry there instead of the deadline. A
sleeper that wakes also leaves its entry, so that the heap keeps nothing alive.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Any, Final, TypeAlias

from redsync._drivers.requests import Sleeper

__all__ = ["Alarm", "Alarms"]

Alarm: TypeAlias = list[Any]
"""The instant, a number that orders alarms of one instant, and the sleeper, None once it is awake."""

_CROWD = 2000
"""The number of entries from which to search for those of sleepers that have woken."""


class Alarms:
    """The alarms of one transport. Everything happens in the loop's thread.

    Attributes:
        asleep: The sleepers, each with its deadline, an instant of the clock. Before a sleeper with a deadline earlier
            than `next` is added, call `arm`.
        next: The instant of the timer; infinity without one.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float], awaken: Callable[[Sleeper], None]
    ) -> None:
        self._loop: Final = loop
        self._clock: Final = clock
        self._awaken: Final = awaken
        self.asleep: Final[dict[Sleeper, float | Alarm]] = {}
        self.next = math.inf
        self._heap: Final[list[Alarm]] = []
        self._count = 0
        self._crowd = _CROWD
        self._timer: asyncio.TimerHandle | None = None

    def arm(self, at: float) -> None:
        """Set the timer to an instant."""
        former, self._timer = self._timer, self._loop.call_later(max(at - self._clock(), 0.0), self._ring)
        self.next = at
        if former is not None:
            former.cancel()

    def clear(self) -> None:
        """Cancel the timer, so that no sleeper is woken any more."""
        self._heap.clear()
        if self._timer is not None:
            self._timer.cancel()

    def catch_up(self) -> None:
        """Ring if an alarm is late: an interruption may have come before it rang, or before the timer was set again."""
        if self.next <= self._clock():
            self._ring()

    def _ring(self) -> None:
        self._enter_new()
        heap, now = self._heap, self._clock()
        while heap and (heap[0][0] <= now or heap[0][2] is None):
            # Removed only then, for `catch_up`.
            if heap[0][2] is not None:
                self._awaken(heap[0][2])
            heappop(heap)
        self.next = math.inf
        if heap:
            self.arm(heap[0][0])

    def _enter_new(self) -> None:
        """Give the sleepers that came since the last time their entries."""
        heap, asleep = self._heap, self.asleep
        for sleeper, at in reversed(asleep.items()):
            if isinstance(at, list):
                break
            self._count += 1
            alarm = asleep[sleeper] = [at, self._count, sleeper]
            if at != math.inf:
                heappush(heap, alarm)
        if len(heap) > self._crowd:
            heap[:] = [alarm for alarm in heap if alarm[2] is not None]
            heapify(heap)
            self._crowd = max(_CROWD, 2 * len(heap))
