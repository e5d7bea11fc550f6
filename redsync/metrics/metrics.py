"""Metrics: turns what clients tell into counts and values of the instrument set.

An exporter says what becomes of a count (`_count`) and of a value (`_record`), and reads the gauges when it is asked to
export. Both are called with the lock held, by one thread at a time.

Told late or twice: a hold's loss may be told before the acquire that won it, as another thread notices it; so ends of
unknown holds are remembered for a while. An end that is told again finds no hold, and counts nothing.
"""

from __future__ import annotations

import os
import threading
import weakref
from abc import abstractmethod
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeAlias

from redsync._core.events import Event, HoldLost, HoldOrphaned, NodeChanged
from redsync._core.holds import HoldState
from redsync._core.observing import (
    AcquireEnded,
    AcquireRecord,
    Detail,
    Ear,
    HoldEnded,
    HoldsRenewed,
    Observer,
    RetryAfterTold,
    WatchdogWoke,
)
from redsync.metrics import instruments as i
from redsync.metrics.groups import Groups, name_group
from redsync.metrics.instruments import Instrument
from redsync.metrics.reasons import loss_reason, vote_reason

__all__ = ["Labels", "Metrics"]

Labels: TypeAlias = tuple[str, ...]
"""The values of an instrument's labels, in their order."""

_MANY = 1024
"""Events that wait to be worked off until a caller does it, if nobody collects."""

_ENDED = 256
"""Ends of unknown holds that are remembered."""


class Metrics(Observer):
    """Counts what clients do; a base class of exporters.

    Args:
        group_of: Returns the name group of a name; it must have few results. None: `name_group`.
        max_groups: The most name groups; names of further ones count as "other".

    Raises:
        TypeError: `group_of` is no function.
        ValueError: `max_groups` is not a positive number.
    """

    def __init__(self, *, group_of: Callable[[str | bytes], str] | None = None, max_groups: int = 200) -> None:
        self._groups: Final = Groups(name_group if group_of is None else group_of, max_groups)
        self._clients: Final[weakref.WeakSet[Any]] = weakref.WeakSet()
        self._ears: Final[weakref.WeakSet[Ear]] = weakref.WeakSet()
        self._limits: Final[dict[str, int]] = {}
        self._begin()
        _all.add(self)

    def _begin(self) -> None:
        """Begin without events and holds: at creation, and in the child of a fork, which holds nothing."""
        self._lock = threading.Lock()
        self._inbox: deque[tuple[Event | Detail, float]] = deque()
        self._holds: dict[HoldState, tuple[Labels, float]] = {}
        self._ended: OrderedDict[HoldState, float] = OrderedDict()

    # What clients tell.

    def listen(self, nodes: Sequence[str], now: Callable[[], float]) -> Ear:
        """Return the ear for a client; see `Observer`."""

        def hear(event: Event | Detail) -> None:
            inbox = self._inbox
            inbox.append((event, now()))
            if len(inbox) >= _MANY:
                self._work_off_some()

        ear = Ear(nodes, hear)
        self._ears.add(ear)
        return ear

    def attach(self, client: Any) -> None:
        """Begin to read the gauges of a client; see `Observer`."""
        self._clients.add(client)

    # What exporters do with it.

    @abstractmethod
    def _count(self, instrument: Instrument, labels: Labels, number: int = 1) -> None:
        """Add to a counter."""

    @abstractmethod
    def _record(self, instrument: Instrument, labels: Labels, value: float) -> None:
        """Add a value to a histogram."""

    def _work_off_some(self) -> None:
        """Work events off, unless another thread does, or this one in the code that was interrupted."""
        if self._lock.acquire(blocking=False):
            try:
                self._work_off()
            finally:
                self._lock.release()

    def _work_off(self) -> None:
        """Count all events so far; with the lock held."""
        inbox = self._inbox
        for _ in range(len(inbox)):
            self._note(*inbox.popleft())
        for ear in list(self._ears):
            for node, took in zip(ear.nodes, ear.took, strict=True):
                for _ in range(len(took)):
                    self._record(i.ROUND_TRIP, (node,), took.popleft())
            for _ in range(len(ear.failed)):
                index, reason = ear.failed.popleft()
                self._count(i.VOTES, (ear.nodes[index], vote_reason(reason)))

    def _note(self, event: Event | Detail, at: float) -> None:
        match event:
            case AcquireEnded():
                self._note_acquire(event, at)
            case HoldEnded(hold):
                self._note_end(hold, at, hold.lost)
            case HoldLost(state=hold, reason=reason):
                self._note_end(hold, at, reason)
            case HoldsRenewed():
                self._note_renewals(event)
            case HoldOrphaned(name):
                self._count(i.ORPHANS, (self._groups.of(name),))
            case NodeChanged(node, state):
                self._count(i.NODE_CHANGES, (node, state))
            case RetryAfterTold(name, seconds):
                self._record(i.RETRY_AFTER, (self._groups.of(name),), seconds)
            case WatchdogWoke(lag):
                self._record(i.LAG, (), lag)

    def _note_acquire(self, event: AcquireEnded, at: float) -> None:
        record, outcome, hold = event.record, event.outcome, event.hold
        whose = record.kind, self._groups.of(record.name)
        self._count(i.ATTEMPTS, (*whose, outcome))
        self._record(i.WAIT, (*whose, outcome), at - record.started)
        if record.kind == "rate_limiter" and outcome in ("won", "busy"):
            admitted = "admitted" if outcome == "won" else "refused"
            self._count(i.LIMITED, (whose[1], admitted), record.wanted)
        if record.limit is not None:
            self._limits[whose[1]] = max(record.limit, self._limits.get(whose[1], 0))
        if not record.rounds:
            return  # A re-entry, or an acquire that never asked: no new hold.
        self._count(i.ROUNDS, whose, record.rounds)
        if record.splits:
            self._count(i.SPLITS, whose, record.splits)
        if record.hand_overs:
            self._count(i.HAND_OVERS, whose, record.hand_overs)
        if hold is not None:
            self._holds[hold] = whose, at
            if (ended := self._ended.pop(hold, None)) is not None:
                self._note_end(hold, max(at, ended), hold.lost)

    def _note_end(self, hold: HoldState, at: float, lost: str | None) -> None:
        known = self._holds.pop(hold, None)
        if known is None:
            self._ended[hold] = at
            if len(self._ended) > _ENDED:
                self._ended.popitem(last=False)
            return
        whose, since = known
        self._record(i.HOLD, whose, at - since)
        if lost is not None:
            self._count(i.LOSSES, (*whose, loss_reason(lost)))

    def _note_renewals(self, event: HoldsRenewed) -> None:
        for hold, left in zip(event.confirmed, event.left, strict=True):
            if (known := self._holds.get(hold)) is not None:
                self._count(i.RENEWALS, (*known[0], "confirmed"))
                self._record(i.MARGIN, known[0], left)
        for hold in event.doubtful:
            if (known := self._holds.get(hold)) is not None:
                self._count(i.RENEWALS, (*known[0], "unconfirmed"))

    # What is true now.

    def _gauges(self) -> Iterator[tuple[Instrument, dict[Labels, float]]]:
        """Yield the present values of each gauge; with the lock held, after all events were worked off."""
        held: Counter[Labels] = Counter(whose for whose, _ in self._holds.values())
        permits: Counter[Labels] = Counter()
        for hold, (whose, _) in self._holds.items():
            if whose[0] == "semaphore":
                permits[whose[1:]] += hold.count
        waiting, line = self._waiting()
        yield i.WAITING, dict(waiting)
        yield i.HELD, dict(held)
        yield i.PERMITS, dict(permits)
        yield i.PERMIT_LIMIT, {(group,): limit for group, limit in self._limits.items()}
        yield i.LINE, dict(line)
        yield from self._node_gauges()

    def _waiting(self) -> tuple[Counter[Labels], Counter[Labels]]:
        waiting: Counter[Labels] = Counter()
        line: Counter[Labels] = Counter()
        for client in self._open_clients():
            records: list[AcquireRecord] = list(client.runner.session.acquiring)
            for record in records:
                if record.waiting:
                    whose = record.kind, self._groups.of(record.name)
                    waiting[whose] += 1
                    if record.kind == "semaphore":
                        line[whose[1:]] += record.wanted
        return waiting, line

    def _node_gauges(self) -> Iterator[tuple[Instrument, dict[Labels, float]]]:
        states: dict[Labels, float] = {}
        quarantines: dict[Labels, float] = {}
        pending: dict[Labels, float] = {}
        for client in self._open_clients():
            for status in client.nodes():
                for state in ("up", "down", "suspect", "quarantined"):
                    key = status.address, state
                    states[key] = states.get(key, 0) + (state == status.state)
                node = (status.address,)
                quarantines[node] = max(status.quarantine_left, quarantines.get(node, 0.0))
                pending[node] = pending.get(node, 0) + status.pending
        yield i.NODE_STATE, states
        yield i.QUARANTINE, quarantines
        yield i.PENDING, pending

    def _open_clients(self) -> list[Any]:
        return [client for client in list(self._clients) if not client.runner.closed]


_all: weakref.WeakSet[Metrics] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for metrics in list(_all):
        metrics._begin()


os.register_at_fork(after_in_child=_after_fork_in_child)
