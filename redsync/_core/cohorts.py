"""Cohorts: holds of one kind and lease that the watchdog looks at together, in the order in which they are due.

The watchdog asks for the cohort that is due first, looks at its holds, and puts the cohort back. So a wake-up costs
as much as is due then, however many other holds there are. Holds that have ended come before all that are due: the
watchdog reports a loss right after the round under way, however many renewals wait for their turn. Invariants:

* A hold of the table that is not lost is in one cohort. It is *fresh* until the watchdog next looks for work, and then
  in the cohort that is `HoldState.cohort`. After an interrupted step it may be in an earlier cohort too; there it does
  not count.
* A cohort stands in the heap at an instant no later than the `due` of any of its holds. A hold whose `due` comes closer
  is fresh again. One whose `due` moves away makes the watchdog look too early, once.
* Adding and removing a hold costs O(1), because each acquire and each release does it. Only the watchdog touches the
  heap.
* The cohort at which the watchdog looks stays first in the heap. A watchdog that fails half-way leaves it to the next.

`_protocols/watchdog.py` decides when to renew what.
"""

from __future__ import annotations

import math
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from redsync._core.effects import Command

if TYPE_CHECKING:
    from redsync._core.holds import HoldState
    from redsync._core.limits import Limit

__all__ = ["MOST", "Cohort", "Composed", "Schedule", "soon"]

MOST = 200
"""The most claims per renewal command: about 0.5 ms of a node's time, which hardly delays other clients' commands."""

_PURGE_FROM = 64
"""The smallest number of cohorts for which a purge is worth its time."""

_Key: TypeAlias = tuple[str, float, bool]
"""Shared by the holds of a cohort: the script that renews them, the lease, and whether the watchdog renews them."""


def soon(lease: float) -> float:
    """Return how many seconds early a hold may be renewed along with others, so that commands are few and full."""
    return lease / 12


class Composed(NamedTuple):
    """A renewal as it was last sent; sent again unchanged as long as its holds don't change.

    Attributes:
        holds: The holds that it renews.
        marks: Their values that may change between two renewals, see `HoldState.marks_of`.
        command: The command.
        limits: The limits that it carries, see `Renewal`.
    """

    holds: list[HoldState]
    marks: list[Any]
    command: Command
    limits: list[list[Limit]]


class Cohort:
    """Up to `MOST` holds of one kind and lease, due at about the same time.

    Attributes:
        key: Shared by all of them, see `_Key`.
        due: The instant at which the watchdog looks at them.
        ends_at: An instant before which none of them ends.
        holds: The holds, in the order in which they joined.
        aligned: True if all share `due` and `ends_at` at this moment, which saves a look at each of them.
        composed: Their latest renewal; None before the first.
    """

    __slots__ = ("aligned", "composed", "due", "ends_at", "holds", "key")

    def __init__(self, key: _Key, due: float) -> None:
        self.key = key
        self.due = due
        self.ends_at = math.inf
        self.holds: dict[HoldState, None] = {}
        self.aligned = False
        self.composed: Composed | None = None

    @property
    def lease(self) -> float:
        """The lease of its holds."""
        return self.key[1]

    @property
    def last(self) -> float:
        """The latest `due` with which a hold may join."""
        return self.due + soon(self.key[1])

    def take(self, state: HoldState, before: Cohort) -> None:
        """Move a hold from another cohort to this one."""
        self.ends_at = min(self.ends_at, state.valid_until)
        self.holds[state] = None
        state.cohort = self
        before.holds.pop(state, None)

    def align(self, due: float, ends_at: float) -> None:
        """Record that all its holds are due and end at these instants; `put` must follow in the same step."""
        self.due, self.ends_at, self.aligned = due, ends_at, True

    def discard(self, state: HoldState) -> None:
        """Forget a hold, unless it belongs to another cohort."""
        self.holds.pop(state, None)
        if state.cohort is self:
            state.cohort = None


class Schedule:
    """All cohorts of one client, by when the watchdog looks at them; `HoldTable` adds and removes holds."""

    def __init__(self) -> None:
        self._fresh = Cohort(("", 0.0, False), -math.inf)
        # The numbers order equal instants, so that cohorts are never compared.
        self._heap: list[tuple[float, int, Cohort]] = []
        self._numbers = count()
        # An instant before which no hold ends, fresh ones aside.
        self._ends_at = math.inf
        self._purge_at = _PURGE_FROM

    def hasten(self, state: HoldState) -> None:
        """Look at a hold no later than at its `due`, which may have come closer."""
        if state.cohort is not None and state.due < state.cohort.due:
            self._fresh.take(state, state.cohort)

    def ended(self, now: float) -> list[HoldState]:
        """Return the holds whose validity is over, but which are not yet lost."""
        if self._fresh.holds:
            self._arrange(self._fresh)
        if now < self._ends_at:
            return []
        found: list[HoldState] = []
        for _, _, cohort in self._heap:
            if cohort.ends_at <= now:
                live = [state for state in cohort.holds if state.lost is None]
                found += [state for state in live if state.valid_until <= now]
                # Holds that were found keep `ends_at` in the past until they are lost.
                cohort.ends_at = min((state.valid_until for state in live), default=math.inf)
        self._ends_at = min((entry[2].ends_at for entry in self._heap), default=math.inf)
        return found

    def first(self) -> Cohort | None:
        """Return the cohort that is due first; None if there is none."""
        if self._fresh.holds:
            self._arrange(self._fresh)
        heap = self._heap
        while heap:
            instant, _, cohort = heap[0]
            if not cohort.holds:
                heappop(heap)
            elif instant < cohort.due:
                # An interruption struck before it was put back.
                heapreplace(heap, (cohort.due, next(self._numbers), cohort))
            else:
                cohort.aligned = False
                return cohort
        return None

    def gather(self, cohort: Cohort, last: float) -> None:
        """Move to a cohort the holds of its kind that are due for renewal by the instant `last`, as far as they fit."""
        room = MOST - len(cohort.holds)
        if room <= 0:
            return
        others = [entry for entry in self._heap if entry[0] <= last and entry[2].key == cohort.key]
        for _, _, other in sorted(others):
            if other is not cohort and len(other.holds) <= room:
                for state in [state for state in other.holds if state.renew_at <= last]:
                    cohort.take(state, other)
                room = MOST - len(cohort.holds)

    def put(self, cohort: Cohort) -> None:
        """Put back the cohort that was `first`, after the look at its holds; those due much later leave it."""
        assert self._heap[0][2] is cohort, "only the watchdog changes the order"
        if cohort.aligned:
            cohort.aligned = False
            heapreplace(self._heap, (cohort.due, next(self._numbers), cohort))
            return
        ended = [
            state for state in cohort.holds if state.lost is not None or not state.live or state.cohort is not cohort
        ]
        for state in ended:
            cohort.discard(state)
        if not cohort.holds:
            return
        dues = [state.due for state in cohort.holds]
        cohort.due = min(dues)
        heapreplace(self._heap, (cohort.due, next(self._numbers), cohort))
        if max(dues) > cohort.last:
            self._arrange(cohort, after=cohort.last)

    def _arrange(self, source: Cohort, after: float = -math.inf) -> None:
        """Move the holds of a cohort that are due later than `after` to new ones."""
        made: dict[_Key, Cohort] = {}
        for state in sorted((state for state in source.holds if state.due > after), key=attrgetter("due")):
            if state.lost is not None or not state.live:
                source.discard(state)
                continue
            due, key = state.due, (state.kind.renew.name, state.lease, state.renewed)
            cohort = made.get(key)
            if cohort is None or len(cohort.holds) >= MOST or due > cohort.last:
                cohort = made[key] = Cohort(key, due)
                self._purge()
                heappush(self._heap, (due, next(self._numbers), cohort))
            cohort.take(state, source)
            self._ends_at = min(self._ends_at, cohort.ends_at)

    def _purge(self) -> None:
        """Drop the cohorts without holds; the next purge comes when there are twice as many cohorts."""
        if len(self._heap) >= self._purge_at:
            self._heap = [entry for entry in self._heap if entry[2].holds]
            heapify(self._heap)
            self._purge_at = max(2 * len(self._heap), _PURGE_FROM)
