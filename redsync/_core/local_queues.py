"""Waiting in one process: plain queues in order of arrival, of which only the first waiters may ask the nodes.

A client has two uses for them:

* **One queue for each lock.** A waiter renews its place on the nodes every second or two. Ten thousand waiters of one
  client would keep client and nodes busy with that alone. So only the first of them stand in the nodes' queues; each
  that was served or gave up lets the next one follow. That one tells the nodes that its waiting begins then. If it told
  them how long it has really waited, nodes would order the waiters of one client differently, because they learn of
  them at slightly different instants. Then they would hand the lock over to several of them.
* **One queue for all tries that found no quorum** (`RETRIES`). Thousands of waiters that each ask several times a
  second would keep the process too busy to reconnect to nodes that are back, and would flood these with commands. A
  waiter whose try again finds no quorum keeps its turn for the pause that follows, and then goes to the end of the
  queue. So in an outage `RETRIERS` waiters ask, at the pace of their pauses. One that was answered leaves at once, so
  the others follow as quickly as nodes answer. Why there is no quorum does not matter: nodes may be down, hung, in
  quarantine, or answer with errors. Waiters whose tries can't succeed (a lease too short for these nodes) delay the
  others by their pauses only.

Queues change only within a step of a protocol. Each waiter has its own name, and sleeps until a signal of that name.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable
from functools import partial
from itertools import islice
from typing import Final

from redsync._core.effects import Steps, Wait, signal, wait
from redsync._core.timing import retry_delay

__all__ = ["LIMIT", "RETRIERS", "RETRIES", "LocalQueues"]

LIMIT = 64
"""How many waiters for one lock may ask: more than nodes serve before a follower has its place there."""

RETRIERS = 8
"""How many waiters that found no quorum may try again at a time: about fifty tries a second in a long outage."""

RETRIES: Final = None
"""The queue of the waiters that found no quorum and want to try again, whatever they wait for."""

_LONGEST_SLEEP = 30.0
"""Seconds after which a waiter looks by itself: an interruption may have lost its wake-up."""


class LocalQueues:
    """The queues of one client, each by what its waiters wait for.

    Attributes:
        without_quorum: The queues in which no round of a waiter has found a quorum so far, or the latest found none.
            Each with the instant at which the outage began; infinity if none is known.
    """

    def __init__(self) -> None:
        self._queues: Final[dict[Hashable, OrderedDict[bytes, None]]] = {}
        self.without_quorum: Final[dict[Hashable, float]] = {}

    def enter(self, queue: Hashable, waiter: bytes) -> bool:
        """Join the end of a queue; return whether the waiter may ask at once."""
        waiters = self._queues.get(queue)
        if waiters is None:
            self._queues[queue] = waiters = OrderedDict()
            self.without_quorum[queue] = math.inf
        waiters[waiter] = None
        return len(waiters) <= _limit(queue)

    def may_go(self, queue: Hashable, waiter: bytes) -> bool:
        """Return whether the waiter is one of the first; drivers may ask between the steps of other threads."""
        return waiter in islice(self._queues.get(queue, ()), _limit(queue))

    def wait_turn(self, queue: Hashable, waiter: bytes, now: float, until: float) -> Steps[float]:
        """Sleep until the waiter is one of the first, or until the instant; return when the sleep ended."""
        may_go = partial(self.may_go, queue, waiter)
        while not may_go() and now < until:
            now = (yield from wait(Wait(min(until, now + _LONGEST_SLEEP), waiter, unless=may_go))).at
        return now

    def retry(self, waiter: bytes, failures: int, random: float, now: float, until: float) -> Steps[float]:
        """Pause after a try that found no quorum, then wait for a turn to try again; return when that has come.

        The pause grows with the number of failures. The turn lasts until the waiter calls this again, or leaves
        `RETRIES`. At `until` it may try in any case.
        """
        pause = retry_delay(failures, random, shortest=0.02, longest=0.25)
        now = (yield from wait(Wait(min(now + pause, until)))).at
        yield from self.leave_queues(waiter, RETRIES)
        self.enter(RETRIES, waiter)
        return (yield from self.wait_turn(RETRIES, waiter, now, until))

    def note(self, queue: Hashable, outage_since: float | None) -> None:
        """Record a round of a waiter, and if it found no quorum, since when there is an outage."""
        if outage_since is None:
            self.without_quorum.pop(queue, None)
        elif queue in self._queues:
            self.without_quorum[queue] = outage_since

    def leave_queues(self, waiter: bytes, *queues: Hashable) -> Steps[None]:
        """Leave each of these queues that the waiter is in, and wake the ones that may ask instead."""
        try:
            yield from self._leave(waiter, queues)
        except BaseException:
            # Again: the interruption may have struck before it left, or before the first signal.
            yield from self._leave(waiter, queues)
            raise

    def _leave(self, waiter: bytes, queues: tuple[Hashable, ...]) -> Steps[None]:
        for queue in queues:
            if waiters := self._queues.get(queue):
                waiters.pop(waiter, None)
            if not waiters:
                self._queues.pop(queue, None)
                self.without_quorum.pop(queue, None)
            elif len(waiters) >= _limit(queue):
                # If the waiter was not one of the first, this one is awake already.
                yield from signal(next(islice(waiters, _limit(queue) - 1, None)))


def _limit(queue: Hashable) -> int:
    """Return how many waiters of the queue may ask."""
    return RETRIERS if queue is RETRIES else LIMIT
