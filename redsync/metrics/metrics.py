"""Metrics: turns the reports of clients into counts and values of the instruments.

An exporter reads the counters (`_counts`) and gauges at each collection. It gets the values of histograms in batches,
and stores or passes them on as it likes (`_record_all`).

**Cost.** For an acquire and its release a caller adds two entries to a journal, and a float for each reply (see
`observing`). The rest is done in batches, by the thread that collects, or by an acquire that finds the journal long. A
batch looks up kind and name once per entry, and passes the values of one series to the exporter as a list.

**Threads.** Any thread may add entries while another one processes them: no entry is lost or counted twice (`Journal`
says why). One thread at a time processes entries, and holds `_lock`. A caller that finds the lock taken continues
without waiting, and so does a signal handler that interrupts the processing. A collection waits for another thread's
processing, but not for its own thread's, which would never end: a signal handler that collects gets what is counted so
far. `_owner`, taken before `_lock`, tells the two apart.

**Interruptions.** An exception may end the processing at any call. It costs at most the current entry and the values on
their way to an exporter's histogram; the next run continues behind them. So a count and the entry behind it change
together: no call comes between these lines.
"""

from __future__ import annotations

import os
import threading
import weakref
from abc import abstractmethod
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat, starmap
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from redsync._core import observing
from redsync._signal_safe import SafeLock
from redsync.metrics import instruments as i
from redsync.metrics.instruments import Instrument
from redsync.metrics.labels import Groups, loss_reason, name_group, vote_reason

__all__ = ["Labels", "Metrics"]

ResultT = TypeVar("ResultT")

Labels: TypeAlias = tuple[str, ...]
"""The values of an instrument's labels, in their order."""

_MOST_NAMES = 4096
"""The most names whose series are cached; a full cache is emptied."""

_MOST_REPLIES = 65_536
"""The most round trips per node, and failed votes, kept until they are processed; the oldest are dropped first."""

_CLOCKS_FOR, _SHORTEST_SPAN = 600.0, 15.0
"""The longest and the shortest span, in seconds, over which the rates of two clocks are compared."""

_Reading: TypeAlias = tuple[float, float, float, float]
"""A reading of a node's clock: the instant on the client's clock, its uncertainty, the node's time, allowed drift."""


class _Renewals(NamedTuple):
    """Renewals of holds, which may have ended since: the kind and name of each, and the share of its lease left."""

    confirmed: list[tuple[str, str | bytes, float]]
    doubtful: list[tuple[str, str | bytes]]

    @classmethod
    def of(cls, event: observing.HoldsRenewed, journal: observing.Journal) -> _Renewals:
        """Return the renewals of those holds that are in the journal."""
        known = journal.holds.get
        confirmed = [
            (found[0], hold.name, left)
            for hold, left in zip(event.confirmed, event.left, strict=True)
            if (found := known(hold)) is not None
        ]
        return cls(confirmed, [(found[0], hold.name) for hold in event.doubtful if (found := known(hold)) is not None])


class _Series:
    """The counts of one kind and name group since they were last passed on."""

    __slots__ = ("hand_overs", "holds", "labels", "more_rounds", "splits", "waits")

    def __init__(self, labels: Labels) -> None:
        self.labels = labels
        self.waits: dict[str, list[float]] = {"won": [], "busy": [], "no_quorum": [], "error": []}
        self.holds: list[float] = []
        self.more_rounds = self.splits = self.hand_overs = 0


class Metrics(observing.Observer):
    """Counts what clients do; a base class of exporters.

    Args:
        group_of: A function that returns the name group of a name, one of few; None: `name_group`.
        max_groups: The most name groups; names of further groups count as "other".

    Raises:
        TypeError: `group_of` is not a function.
        ValueError: `max_groups` is not a positive number.
    """

    def __init__(self, *, group_of: Callable[[str | bytes], str] | None = None, max_groups: int = 200) -> None:
        self._groups: Final = Groups(name_group if group_of is None else group_of, max_groups)
        self._clients: Final[weakref.WeakValueDictionary[int, Any]] = weakref.WeakValueDictionary()
        self._limits: Final[dict[str, int]] = {}
        self._counts: Final[defaultdict[Instrument, defaultdict[Labels, int]]] = defaultdict(lambda: defaultdict(int))
        self._journal: Final = observing.Journal()
        self._inbox: Final[deque[tuple[observing.Event | observing.Detail | _Renewals, float]]] = deque()
        self._took: Final[dict[str, deque[float]]] = {}
        self._failed: Final[deque[tuple[str, str]]] = deque(maxlen=_MOST_REPLIES)
        self._clocks: Final[dict[str, deque[_Reading]]] = {}
        self._series: Final[dict[Labels, _Series]] = {}
        self._series_of: Final[dict[tuple[str, str | bytes], _Series]] = {}
        self._owner, self._lock = SafeLock(threading.RLock()), SafeLock(threading.Lock())
        _all.add(self)

    def _begin(self) -> None:
        """Reset in the child of a fork, which has none of its parent's holds; counts stay."""
        self._owner, self._lock = SafeLock(threading.RLock()), SafeLock(threading.Lock())
        self._journal.clear()
        self._inbox.clear()
        self._failed.clear()
        for took in self._took.values():
            took.clear()

    # For clients.

    def listen(self, nodes: Sequence[str], now: Callable[[], float]) -> observing.ObserverSubscription:
        """Return the subscription for a client; see `Observer`."""
        journal = self._journal

        def hear(event: observing.Event | observing.Detail) -> None:
            match event:
                case observing.JournalFilled():
                    self._work_off_some()
                case observing.AcquireEnded(record, "won", hold):
                    if journal.note_win(record, now(), hold or True):
                        self._work_off_some()
                case observing.HoldEnded(hold):
                    journal.note_end(hold, now(), hold.lost)
                case observing.HoldLost(state=hold, reason=reason):
                    journal.note_end(hold, now(), reason)
                case observing.HoldsRenewed():
                    # At once: when they are counted these holds may have ended, and the journal has forgotten their
                    # kinds.
                    self._put(_Renewals.of(event, journal), now())
                case _:
                    self._put(event, now())

        subscription = observing.ObserverSubscription(nodes, hear, journal=journal)
        # Shared with other clients, so that nothing is lost when a client ends.
        subscription.took = tuple(self._took.setdefault(node, deque(maxlen=_MOST_REPLIES)) for node in nodes)
        subscription.failed = self._failed
        return subscription

    def _put(self, event: observing.Event | observing.Detail | _Renewals, at: float) -> None:
        self._inbox.append((event, at))
        if len(self._inbox) >= observing.LONG:
            self._work_off_some()

    def attach(self, client: Any) -> None:
        """Begin to read the gauges of a client; see `Observer`."""
        self._clients[id(client)] = client

    # For exporters.

    @abstractmethod
    def _record_all(self, instrument: Instrument, labels: Labels, values: list[float]) -> None:
        """Add values to a histogram; with the lock held, by one thread at a time."""

    def _work_off_some(self) -> None:
        """Process the entries, unless another thread, or this thread in interrupted code, is doing so."""
        # Not `acquire(blocking=False)`: an interruption right after it would leave the lock taken forever. If another
        # thread takes the lock in between, which is rare, this one waits.
        if not self._lock.lock.locked():
            self._read(_nothing)

    def _read(self, read: Callable[[], ResultT]) -> ResultT:
        """Process the entries, and return what `read` returns while no other thread processes any.

        In a signal handler that interrupted the processing it processes nothing more.
        """
        with self._owner:
            lock = self._lock
            if lock.lock.locked():
                return read()
            with lock:
                self._work_off()
                return read()

    def _work_off(self) -> None:
        """Count all entries so far; with the lock held."""
        wins, ends, known = self._journal.wins, self._journal.ends, self._series_of
        limited, losses = self._counts[i.LIMITED], self._counts[i.LOSSES]
        for _ in range(len(wins)):
            record, waited = wins.popleft()
            series = known.get((record.kind, record.name)) or self._series_for(record.kind, record.name)
            if record.limit is not None:
                self._note_limit(series, record.limit)
            elif record.kind == "rate_limiter":
                limited[series.labels[1], "admitted"] += record.wanted
            series.more_rounds += record.rounds - 1
            series.splits += record.splits
            series.hand_overs += record.hand_overs
            series.waits["won"].append(waited)
        for _ in range(len(ends)):
            kind, name, held, lost = ends.popleft()
            series = known.get((kind, name)) or self._series_for(kind, name)
            if lost is not None:
                labels = *series.labels, loss_reason(lost)
                losses[labels] += 1
            series.holds.append(held)
        for _ in range(len(self._inbox)):
            self._note(*self._inbox.popleft())
        for series in self._series.values():
            self._pass_on(series)
        for node, took in list(self._took.items()):
            if took:
                self._record_all(i.ROUND_TRIP, (node,), list(starmap(took.popleft, repeat((), len(took)))))
        for _ in range(len(self._failed)):
            node, reason = self._failed.popleft()
            self._counts[i.VOTES][node, vote_reason(reason)] += 1

    def _pass_on(self, series: _Series) -> None:
        """Move the counts of a series into the counters, and its values to the exporter."""
        counts, labels = self._counts, series.labels
        attempts, rounds = counts[i.ATTEMPTS], counts[i.ROUNDS]
        splits, hand_overs = counts[i.SPLITS], counts[i.HAND_OVERS]
        for outcome, waits in series.waits.items():
            if waits:
                number = len(waits)
                series.waits[outcome] = []
                attempts[*labels, outcome] += number
                if outcome == "won":
                    series.more_rounds += number
                self._record_all(i.WAIT, (*labels, outcome), waits)
        if holds := series.holds:
            series.holds = []
            self._record_all(i.HOLD, labels, holds)
        if series.more_rounds:
            rounds[labels] += series.more_rounds
            series.more_rounds = 0
        if series.splits:
            splits[labels] += series.splits
            series.splits = 0
        if series.hand_overs:
            hand_overs[labels] += series.hand_overs
            series.hand_overs = 0

    def _series_for(self, kind: str, name: str | bytes) -> _Series:
        if len(self._series_of) >= _MOST_NAMES:
            self._series_of.clear()
        labels = kind, self._groups.of(name)
        series = self._series.get(labels)
        if series is None:
            series = self._series[labels] = _Series(labels)
        self._series_of[kind, name] = series
        return series

    def _note_limit(self, series: _Series, limit: int) -> None:
        group = series.labels[1]
        self._limits[group] = max(limit, self._limits.get(group, 0))

    def _note_failure(self, record: observing.AcquireRecord, outcome: str, at: float) -> None:
        """Count an acquire without success."""
        series, limited = self._series_for(record.kind, record.name), self._counts[i.LIMITED]
        if record.limit is not None:
            self._note_limit(series, record.limit)
        elif record.kind == "rate_limiter" and outcome == "busy":
            limited[series.labels[1], "refused"] += record.wanted
        series.more_rounds += record.rounds
        series.splits += record.splits
        series.hand_overs += record.hand_overs
        series.waits[outcome].append(at - record.started)

    def _note(self, event: observing.Event | observing.Detail | _Renewals, at: float) -> None:
        match event:
            case observing.AcquireEnded(record, outcome):
                self._note_failure(record, outcome, at)
            case _Renewals():
                self._note_renewals(event)
            case observing.HoldOrphaned(name):
                self._counts[i.ORPHANS][(self._groups.of(name),)] += 1
            case observing.NodeChanged(node, state):
                self._counts[i.NODE_CHANGES][node, state] += 1
            case observing.RetryAfterTold(name, seconds):
                self._record_all(i.RETRY_AFTER, (self._groups.of(name),), [seconds])
            case observing.ClocksRead():
                self._note_clocks(event)
            case observing.WatchdogWoke(lag):
                self._record_all(i.LAG, (), [lag])

    def _note_clocks(self, event: observing.ClocksRead) -> None:
        reading = (event.began + event.ended) / 2, (event.ended - event.began) / 2
        for node, seconds in event.clocks:
            known = self._clocks.setdefault(node, deque())
            known.append((*reading, seconds, event.allowed))
            while known[0][0] < event.ended - _CLOCKS_FOR:
                known.popleft()

    def _note_renewals(self, event: _Renewals) -> None:
        margins: defaultdict[Labels, list[float]] = defaultdict(list)
        for kind, name, left in event.confirmed:
            margins[kind, self._groups.of(name)].append(left)
        for labels, values in margins.items():
            self._counts[i.RENEWALS][*labels, "confirmed"] += len(values)
            self._record_all(i.MARGIN, labels, values)
        for kind, name in event.doubtful:
            self._counts[i.RENEWALS][kind, self._groups.of(name), "unconfirmed"] += 1

    # Gauges.

    def _gauges(self) -> Iterator[tuple[Instrument, dict[Labels, float]]]:
        """Yield the present values of each gauge; with the lock held, after all events were processed."""
        held: Counter[Labels] = Counter()
        permits: Counter[Labels] = Counter()
        # A copy is one step. `list(items())` makes a tuple for each, so finalizers could run, and end holds meanwhile.
        for hold, (kind, _) in self._journal.holds.copy().items():
            group = self._groups.of(hold.name)
            held[kind, group] += 1
            if kind == "semaphore":
                permits[(group,)] += hold.count
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
            records: list[observing.AcquireRecord] = list(client.runner.session.waiting)
            for record in records:
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
        used = ((node, _allowance_used(readings)) for node, readings in self._clocks.items())
        yield i.CLOCK, {(node,): part for node, part in used if part is not None}
        yield i.NODE_STATE, states
        yield i.QUARANTINE, quarantines
        yield i.PENDING, pending

    def _open_clients(self) -> list[Any]:
        # A list, because a client that is made meanwhile ends the iteration of a weak collection with an error.
        return [each for ref in self._clients.valuerefs() if (each := ref()) is not None and not each.runner.closed]


def _nothing() -> None:
    """Read nothing."""


def _allowance_used(readings: Sequence[_Reading]) -> float | None:
    """Return the share of the allowed drift that a node's clock certainly used between the first and last reading."""
    (began, early, first, _), (ended, late, last, allowed) = readings[0], readings[-1]
    # A node may have read its clock at any instant of the round trip.
    span, unsure = ended - began, early + late
    if not allowed or span < _SHORTEST_SPAN:
        return None
    return max(abs(last - first - span) - unsure, 0.0) / span / allowed


_all: weakref.WeakSet[Metrics] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for metrics in list(_all):
        metrics._begin()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_after_fork_in_child)
