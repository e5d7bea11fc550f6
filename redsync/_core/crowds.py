"""Crowds: of the many waiters of one client for one lock, only the first stand in the nodes' queues.

A waiter renews its place on the nodes every second or two. Ten thousand waiters of one client would keep client and
nodes busy with that alone. So `FRONT` of them ask; the others wait inside the process, in order of arrival. Each asks
once one before it was served or gave up, and tells the nodes that its waiting begins then. If it told them how long it
has really waited, nodes would order the waiters of one client differently, because they learn of them at slightly
different instants. Then they would hand the lock over to several of them.

While few acquires of a lock are under way, the client only counts them. So up to `FRONT` more waiters may have begun by
then.

**A guess.** After an acquire that had to queue, or did not get the lock, the client's next acquire of that lock expects
others to hold it, and asks for a place with its first try. The client remembers that, not the lock object: programs
often make a lock object for each acquisition. It also remembers how many were before that acquire: if there were many,
the next one is in no hurry.

Each operation here runs within one step of a protocol.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final

from redsync._core.keys import HoldKey

__all__ = ["FRONT", "Crowds"]

FRONT = 64
"""How many waiters of one client for one lock ask: more than nodes serve before the next has its place."""

_MOST_EXPECTED = 1024
"""The most locks that others are expected to hold; the one recorded longest ago is dropped first."""


class Crowds:
    """The waiters of one client, by crowd: those in front ask, those behind wait inside the process.

    Attributes:
        under_way: For each lock's key, the number of acquires under way; absent if there is none.
        expected: The locks that others are expected to hold, the latest last, each with the number of waiters that were
            ahead of the client's latest waiter.
        mute: The crowds in which the latest round of a waiter in front found no quorum, each with the instant at which
            the outage began; infinity if nodes answer that they take no part in grants now.
    """

    def __init__(self) -> None:
        self._front: Final[dict[Hashable, set[bytes]]] = {}
        self._behind: Final[dict[Hashable, OrderedDict[bytes, None]]] = {}
        self.under_way: Final[dict[bytes, int]] = {}
        self.expected: Final[OrderedDict[HoldKey, int]] = OrderedDict()
        self.mute: Final[dict[Hashable, float]] = {}

    def expect(self, lock: HoldKey, *, others: bool, ahead: int = 0) -> None:
        """Record whether others are expected to hold the lock at the next acquire, and how many to wait before it."""
        self.expected.pop(lock, None)
        if others:
            self.expected[lock] = ahead
            if len(self.expected) > _MOST_EXPECTED:
                self.expected.popitem(last=False)

    def enter(self, crowd: Hashable, waiter: bytes) -> bool:
        """Join a crowd, or keep the position in it; return whether the waiter is in front and may ask."""
        front = self._front.get(crowd)
        if front is None:
            self._front[crowd] = {waiter}
        elif waiter in front or len(front) < FRONT:
            front.add(waiter)
        else:
            self._behind.setdefault(crowd, OrderedDict())[waiter] = None
            return False
        return True

    def is_in_front(self, crowd: Hashable, waiter: bytes) -> bool:
        """Return whether the waiter may ask now."""
        return waiter in self._front.get(crowd, ())

    def note(self, crowd: Hashable, outage_since: float | None) -> None:
        """Record the round of a waiter in front, and if it found no quorum, since when there is an outage."""
        if outage_since is None:
            self.mute.pop(crowd, None)
        elif crowd in self._front:
            self.mute[crowd] = outage_since

    def leave(self, crowd: Hashable, waiter: bytes) -> bytes | None:
        """Leave the crowd; return the waiter that moves to the front instead and must be woken, or None."""
        front, behind = self._front.get(crowd), self._behind.get(crowd)
        if front is not None:
            front.discard(waiter)
            if not front:
                self._end(crowd)
        return None if behind is None else self._follow(crowd, waiter, behind)

    def _follow(self, crowd: Hashable, gone: bytes, behind: OrderedDict[bytes, None]) -> bytes | None:
        behind.pop(gone, None)
        front = self._front.setdefault(crowd, set())
        follower = None
        if behind and len(front) < FRONT:
            follower = next(iter(behind))
            front.add(follower)
            del behind[follower]
        if not behind:
            del self._behind[crowd]
        if not front:
            self._end(crowd)
        return follower

    def _end(self, crowd: Hashable) -> None:
        del self._front[crowd]
        self.mute.pop(crowd, None)
