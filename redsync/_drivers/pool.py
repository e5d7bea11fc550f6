"""The pool: sets of links, borrowed by one thread at a time.

A thread borrows a set for its rounds, and returns it before it sleeps or calls the application. So a client needs
only as many sets as threads are inside a round. The pool lends the set that was returned last, and makes new ones up to
its limit. No thread waits for a set: if no free one is connected, the maintenance carries the round, over its own set.

A set that was thrown away comes to `invalidated`: the maintenance ends it. It also looks at free sets; a thread that
asks at that instant may make one more.

**A set is in one list at a time**: the free ones, a borrower's, or the invalidated ones. It moves from list to list in
one call of C. So wherever an exception strikes, the set is in one of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from redsync._core.interruptions import expected
from redsync._drivers.link_sets import LinkSet, Shared
from redsync._drivers.nodes import Node

__all__ = ["Pool"]

_LONG_IDLE: Final = 0.01
"""Seconds of rest after which a set looks for connections that have ended before it is used."""

_LAST, _FIRST = (-1,), (0,)
"""Positions in a list from which to take a set."""


class Pool:
    """The sets of one client.

    Attributes:
        invalidated: Sets to be ended by the maintenance.
    """

    def __init__(
        self,
        shared: Shared,
        connect: Callable[[LinkSet, Sequence[Node]], None],
        on_invalidated: Callable[[], None],
        limit: int,
    ) -> None:
        """Make an empty pool.

        Args:
            shared: The client; its mutex is held while a set is made, so that there are no more than the limit.
            connect: Begins to connect a set to these nodes.
            on_invalidated: Called when `invalidated` has a new one; never blocks.
            limit: The most sets.
        """
        self._shared: Final = shared
        self._connect: Final = connect
        self._on_invalidated: Final = on_invalidated
        self._clock: Final = shared.clock
        self._limit: Final = limit
        self._free: Final[list[LinkSet]] = []
        self._alive: Final[set[LinkSet]] = set()
        self._closed = False
        self.invalidated: Final[deque[LinkSet]] = deque()

    def __len__(self) -> int:
        return len(self._alive)

    def borrow(self, into: list[LinkSet]) -> None:
        """Lend the calling thread a set, connected to a quorum and to all nodes that are up: append it to its list.

        Without such a set the list stays empty, and a new one is made, up to the limit, for a later call.
        """
        try:
            if not self._take(_LAST, into):
                with self._shared.mutex:
                    if not self._closed and len(self._alive) < self._limit:
                        into.append(LinkSet(self._shared))
                        into[0].used_at = self._clock()
                        self._alive.add(into[0])
            if into:
                self._prepare(into)
        except BaseException:
            self.throw_away(into)
            raise

    def _take(self, position: tuple[int], into: list[LinkSet]) -> bool:
        """Move the free set at that position to a list; return False if there is none."""
        try:
            into.extend(map(self._free.pop, position))
        except IndexError:
            return False
        return True

    def _prepare(self, into: list[LinkSet]) -> None:
        """Bring a set up to date; put it back, behind the others, if it is being connected, or may not win a round."""
        link_set, now = into[0], self._clock()
        if link_set.connecting:
            link_set.take_arrivals()
        if now - link_set.used_at > _LONG_IDLE:
            link_set.read(0.0)  # late replies,
            link_set.read(0.0)  # and the ends of connections behind them
        link_set.discard_former()
        if None in link_set.links and (missing := link_set.missing(now)):
            self._connect(link_set, missing)
        # The maintenance may have the links that this one lacks, and working ones to the nodes that are silent here (a
        # router forgets connections that rest). A vote too few can cost a caller the lock.
        if link_set.connecting or not link_set.may_win(now):
            self._free[:0] = map(into.pop, _LAST)
            self._after_return()
            return
        link_set.used_at = now

    def take_back(self, borrowed: list[LinkSet]) -> None:
        """Take the set in that list back, for another thread."""
        self._free.extend(map(borrowed.pop, _LAST))
        self._after_return()

    def _after_return(self) -> None:
        if self._closed:  # Only now: a handler may close the client before any step of a return.
            with expected(IndexError):  # `close` took it.
                self.invalidated.extend(map(self._free.pop, _LAST))
            self._on_invalidated()

    def throw_away(self, borrowed: list[LinkSet]) -> None:
        """Take the set in that list, if there is one, to be ended: an exception struck in it."""
        if borrowed:
            self.invalidated.extend(map(borrowed.pop, _LAST))
            self._on_invalidated()

    def note_ended(self, link_set: LinkSet) -> None:
        """Record that a set's connections have ended: there is room for another."""
        self._alive.discard(link_set)

    # For the maintenance.

    def idle(self) -> Sequence[LinkSet]:
        """Return the sets that are free now, those that have rested longest first; not to be used, only to count."""
        return list(self._free)  # Not a tuple: as for `keep_behind`, and Python would read a list that has been freed.

    def sets(self) -> Sequence[LinkSet]:
        """Return all sets, even those that are borrowed."""
        return list(self._alive)

    def borrow_rested(self, into: list[LinkSet]) -> bool:
        """Lend the free set that has rested longest, as it is; return False if there is none."""
        return self._take(_FIRST, into)

    def close(self) -> list[LinkSet]:
        """Lend no more sets, and return the free ones."""
        self._closed = True
        free: list[LinkSet] = []
        while self._take(_FIRST, free):  # Other threads may still return sets: each goes to one of us.
            pass
        return free
