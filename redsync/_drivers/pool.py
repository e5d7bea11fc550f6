"""The pool: sets of links, lent to one thread at a time.

A thread borrows a set for its rounds, and returns it before it sleeps or calls the application. So a client needs
only as many sets as threads are inside a round. The pool lends the set that was returned last, makes new ones up to
its limit, and then lets threads wait in line. Releases do not wait: where no set is free, the maintenance carries them.

A set that was thrown away, or dropped by an exception in any frame, comes to `torn`: the maintenance ends it.

**A set is in one list at a time**: the free ones, a borrower's, or the torn ones. It moves from list to list in one
expression. So wherever an exception strikes, the set is in one of them, or nothing refers to it and it comes to `torn`.
It would not, while other code keeps the exception, if a local variable of an interrupted frame were all that has it.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

from redsync._core.interruptions import expected
from redsync._drivers.link_sets import LinkSet
from redsync._drivers.nodes import Node

__all__ = ["GRACE", "Pool"]

GRACE: Final = 0.05
"""Seconds that a new set waits for more nodes once a quorum is connected."""

_LONG_IDLE: Final = 0.01
"""Seconds of rest after which a set looks for connections that have ended before it is used."""

_KEPT_IDLE: Final = 30.0
"""Seconds of rest after which a set is closed, unless it is the last one."""


class _Place:
    """A place in the line of threads that wait for a set, and the list into which it is put."""

    def __init__(self, into: list[LinkSet]) -> None:
        self.into: Final = into
        self.gate = threading.Lock()
        self.gate.acquire()


class Pool:
    """The sets of one client.

    Attributes:
        torn: Sets to be ended by the maintenance.
    """

    def __init__(
        self,
        make: Callable[[Callable[[LinkSet], None]], LinkSet],
        connect: Callable[[LinkSet, Sequence[Node]], None],
        on_torn: Callable[[], None],
        *,
        clock: Callable[[], float],
        limit: int,
        quorum: int,
        guard: AbstractContextManager[Any],
    ) -> None:
        """Make an empty pool.

        Args:
            make: Makes a set; it gets what to call with a set that was dropped.
            connect: Begins to connect a set to these nodes.
            on_torn: Called when `torn` has a new one; never blocks.
            clock: Returns the current instant in seconds.
            limit: The most sets.
            quorum: The number of nodes that must grant.
            guard: Guards the line.
        """
        self._make: Final = make
        self._connect: Final = connect
        self._on_torn: Final = on_torn
        self._clock: Final = clock
        self._limit: Final = limit
        self._quorum: Final = quorum
        self._guard: Final = guard
        self._free: Final[deque[LinkSet]] = deque()
        self._line: Final[deque[_Place]] = deque()
        # By identity. A plain reference: a weak set's callback would swallow the exception of a signal's handler.
        self._alive: Final[dict[int, weakref.ref[LinkSet]]] = {}
        self._closed = False
        self.torn: Final[deque[LinkSet]] = deque()

    def __len__(self) -> int:
        return len(self._alive)

    def borrow(self, into: list[LinkSet], until: float, in_line_until: float | None = None) -> None:
        """Lend a set to the calling thread, which has it in its list then; the list stays empty if none comes free.

        Args:
            into: The thread's list.
            until: The instant until which to wait for the connections of a new set.
            in_line_until: The instant until which to wait for a set to come free; None: the same.
        """
        try:
            into.append(self._free.pop())
        except IndexError:
            self._wait_for_one(into, until if in_line_until is None else in_line_until)
        if into:
            self._prepare(into, until)

    def borrow_free(self, into: list[LinkSet]) -> None:
        """Lend a set that is free and has a quorum of connections now, if there is one."""
        try:
            into.append(self._free.pop())
        except IndexError:
            return
        self._prepare(into, 0.0)
        if into[0].links.count(None) > len(into[0].links) - self._quorum:
            # Nodes have restarted, say. The maintenance is connected first.
            self.give_back(into)

    def _prepare(self, into: list[LinkSet], until: float) -> None:
        link_set, now = into[0], self._clock()
        try:
            if link_set.connecting:
                link_set.take_arrivals()
            if now - link_set.used_at > _LONG_IDLE:
                link_set.read(0.0)  # late replies,
                link_set.read(0.0)  # and the ends of connections behind them
            if None in link_set.links and (missing := link_set.missing(now)):
                self._connect(link_set, missing)
            if link_set.connecting or link_set.links.count(None) > len(link_set.links) - self._quorum:
                self._await(link_set, until)
        except BaseException:
            self.throw_away(into)
            raise

    def _await(self, link_set: LinkSet, until: float) -> None:
        """Wait until a quorum is connected, and a new set briefly for the others."""
        fresh = not link_set.used_at
        while True:
            now = self._clock()
            left = until - now
            enough = len(link_set.links) - link_set.links.count(None) >= self._quorum
            if left <= 0 or (enough and not (fresh and link_set.connecting)):
                return
            if not link_set.connecting:
                # Connections failed, or the nodes are not known to be up.
                if not link_set.can_have(self._quorum):
                    return
                if missing := link_set.missing(now):
                    self._connect(link_set, missing)
            if not link_set.take_arrivals(min(left, GRACE)) and enough:
                return

    def give_back(self, lent: list[LinkSet]) -> None:
        """Take the set in that list, for another thread."""
        lent[0].used_at = self._clock()
        if lent[0].closed:
            self.throw_away(lent)
            return
        self._free.append(lent.pop())
        if self._closed:  # Only now: a handler may close the client before any step here.
            with expected(IndexError):  # `close` took it.
                self.torn.append(self._free.pop())
            self._on_torn()
        elif self._line:
            self._serve_line()

    def throw_away(self, lent: list[LinkSet]) -> None:
        """Take the set in that list, if there is one, to be ended: an exception struck in it."""
        if lent:
            self.torn.append(lent.pop())
            self._on_torn()

    def note_ended(self, link_set: LinkSet) -> None:
        """Record that a set's connections have ended: there is room for another."""
        with self._guard:
            self._alive.pop(id(link_set), None)
        self._serve_line()

    def _wait_for_one(self, into: list[LinkSet], until: float) -> None:
        place = _Place(into)
        try:
            while not into:
                with self._guard:
                    if self._free:
                        into.append(self._free.pop())
                    elif not self._closed and len(self._alive) < self._limit:
                        into.append(self._make(self._drop))
                        self._alive[id(into[0])] = weakref.ref(into[0])
                    elif self._closed or self._clock() >= until:
                        return
                    else:
                        self._line.append(place)
                if not into:
                    place.gate.acquire(timeout=max(until - self._clock(), 0.0))
                    self._leave_line(place)
        finally:
            self._leave_line(place)
            if not into and self._line:
                self._serve_line()  # It may have been called, and leaves.

    def _leave_line(self, place: _Place) -> None:
        with self._guard:
            if place in self._line:
                self._line.remove(place)

    def _drop(self, link_set: LinkSet) -> None:
        self.torn.append(link_set)
        self._on_torn()

    def _serve_line(self) -> None:
        with self._guard:
            while self._line and (self._free or len(self._alive) < self._limit or self._closed):
                place = self._line.popleft()
                if self._free:
                    place.into.append(self._free.pop())
                place.gate.release()
                if not place.into:
                    return  # It makes one itself, or finds the pool closed; others are served after it.

    # For the maintenance.

    def idle(self) -> Sequence[LinkSet]:
        """Return the sets that are free now, those that have rested longest first; not to be used, only to count."""
        return tuple(self._free)

    def take_idle(self, link_set: LinkSet) -> bool:
        """Borrow that set, if it is free."""
        try:
            self._free.remove(link_set)
        except ValueError:
            return False
        return True

    def return_idle(self, link_set: LinkSet, now: float) -> bool:
        """Give a set back to its place; return False if it is to be ended, because it has rested for long."""
        surplus = now - link_set.used_at > _KEPT_IDLE and len(self._alive) > 1
        if link_set.closed or self._closed or surplus:
            return False
        self._free.appendleft(link_set)
        if self._line:
            self._serve_line()
        return True

    def forget(self, *, close: bool) -> None:
        """In the child of a fork: drop the copies of the parent's sockets, see `Maintenance.forget`."""
        for reference in list(self._alive.values()):
            if (link_set := reference()) is not None:
                link_set.forget(close=close)

    def close(self) -> list[LinkSet]:
        """Lend no more sets, wake all that wait, and return the free ones."""
        with self._guard:
            self._closed = True
            while self._line:
                self._line.popleft().gate.release()
        free: list[LinkSet] = []
        with expected(IndexError):
            while True:  # Other threads may still return sets: each goes to one of us.
                free.append(self._free.popleft())
        return free
