"""Alarms: wake the sleepers of an event loop at their deadlines, with one timer for all.

Hardly any round reaches its deadline. With one of the loop's timers for each round, setting and cancelling them would
cost as much as the rest of the round.
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
"""Its instant, a number that tells alarms of one instant apart, and the sleeper; None once the alarm was dropped."""

_CROWD = 2000
"""The least number of alarms that are searched for dropped ones: more than finished rounds leave behind."""


class Alarms:
    """The alarms of one transport. Everything happens in the loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float]) -> None:
        self._loop: Final = loop
        self._clock: Final = clock
        self._heap: Final[list[Alarm]] = []
        self._count = 0
        self._crowd = _CROWD
        self._next = math.inf
        self._timer: asyncio.TimerHandle | None = None

    def set(self, at: float, sleeper: Sleeper) -> Alarm:
        """Wake the sleeper at that instant of the clock, unless the alarm is dropped before."""
        self._count += 1
        alarm: Alarm = [at, self._count, sleeper]
        if at != math.inf:
            if len(self._heap) >= self._crowd:
                self._sweep()
            heappush(self._heap, alarm)
            if at < self._next:
                self._arm(at)
        return alarm

    @staticmethod
    def drop(alarm: Alarm) -> None:
        """Do not wake that sleeper any more; its entry is removed when it is due."""
        alarm[2] = None

    def _sweep(self) -> None:
        """Remove dropped alarms, and set the number of alarms at which to do so next."""
        self._heap[:] = [alarm for alarm in self._heap if alarm[2] is not None]
        heapify(self._heap)
        self._crowd = max(_CROWD, 2 * len(self._heap))

    def clear(self) -> None:
        """Drop all alarms."""
        self._heap.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._next = at
        self._timer = self._loop.call_later(max(at - self._clock(), 0.0), self._ring)

    def _ring(self) -> None:
        heap, now = self._heap, self._clock()
        while heap and (heap[0][2] is None or heap[0][0] <= now):
            sleeper = heappop(heap)[2]
            if sleeper is not None:
                sleeper.wake()
        self._next = math.inf
        if heap:
            self._arm(heap[0][0])
