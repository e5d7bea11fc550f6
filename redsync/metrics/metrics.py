"""Metrics: turns the reports of clients into counts and values of the instruments.

An exporter reads the counters (`_counts`) and gauges at each collection. It gets the values of histograms in batches,
and stores or passes them on as it likes (`_record_all`).

**Cost.** A caller appends one entry for an acquire, one for its end, and one for each round (see `observing`).
The rest is done in batches, by the thread that collects, or by a caller that finds the entries many. The values of one
series go to the exporter as a list.

**Threads.** Any thread may add entries while another one processes them, in the order in which they came. One thread at
a time processes entries, and holds `_lock`. A caller that finds the lock taken continues without waiting, and so does a
signal handler that interrupts the processing. A collection waits for another thread's processing, but not for its own
thread's, which would never end: a signal handler that collects gets what is counted so far. `_reentrant`, taken before
`_lock`, tells the two apart.

**Interruptions.** An exception may end the processing at any call. It costs at most the current entry, with an
acquire the end of its hold, and the values on their way to an exporter's histogram; the next run continues behind them.
"""

from __future__ import annotations

import os
import threading
import weakref
from abc import abstractmethod
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any, Final, TypeAlias, TypeVar

from redsync._core import observing
from redsync._core.holds import HoldState
from redsync._signal_safe import SafeLock
from redsync.metrics import instruments as i
from redsync.metrics.instruments import Instrument
from redsync.metrics.labels import Groups, loss_reason, name_group, vote_reason

__all__ = ["FORKED", "Labels", "Metrics"]

ResultT = TypeVar("ResultT")

Labels: TypeAlias = tuple[str, ...]
"""The values of an instrument's labels, in their order."""

FORKED: Final[weakref.WeakSet[Any]] = weakref.WeakSet()
"""The observers of this process; the child of a fork calls the method `_begin` of each."""

_MOST_EARLY: Final = 256
"""The most ends of holds kept for acquires that have yet to report their success."""

_LONG = 256
"""The number of entries from which a caller processes them."""

_MOST_ROUNDS = 16_384
"""The most rounds kept until they are processed; the oldest are dropped first."""

_COUNTED: Final = {"round": i.ROUNDS, "split": i.SPLITS, "handed over": i.HAND_OVERS}
_LIMITED: Final = {"won": "admitted", "busy": "refused"}


class Metrics(observing.Observer):
    """Counts what clients do; a base class of exporters, which document its arguments."""

    _now: Callable[[], float]  # the clients' clock

    def __init__(self, *, group_of: Callable[[str | bytes], str] | None = None, max_groups: int = 200) -> None:
        self._groups: Final = Groups(name_group if group_of is None else group_of, max_groups)
        self._clients: Final[weakref.WeakValueDictionary[int, Any]] = weakref.WeakValueDictionary()
        self._limits: Final[dict[str, int]] = {}
        self._counts: Final[defaultdict[Instrument, defaultdict[Labels, int]]] = defaultdict(lambda: defaultdict(int))
        self._values: Final[defaultdict[tuple[Instrument, Labels], list[float]]] = defaultdict(list)
        # Weak, because of an event loop that is closed before its client no one reports the ends of holds.
        self._holds: Final[weakref.WeakKeyDictionary[HoldState, tuple[Labels, float]]] = weakref.WeakKeyDictionary()
        self._early: Final[dict[HoldState, tuple[float, str | None]]] = {}
        self._inbox: Final[deque[tuple[observing.Event | observing.Detail, float]]] = deque()
        self._rounds: Final[deque[observing.Round]] = deque(maxlen=_MOST_ROUNDS)
        self._reentrant, self._lock = SafeLock(threading.RLock()), SafeLock(threading.Lock())
        FORKED.add(self)

    def _begin(self) -> None:
        """Reset in the child of a fork, which has none of its parent's holds; counts stay."""
        self._reentrant, self._lock = SafeLock(threading.RLock()), SafeLock(threading.Lock())
        every: tuple[Any, ...] = (self._inbox, self._rounds, self._values, self._holds, self._early)
        for each in every:
            each.clear()

    # For clients.

    def listen(self, now: Callable[[], float]) -> observing.ObserverSubscription:
        """Return the subscription for a client; see `Observer`."""
        self._now = now

        def hear(event: observing.Event | observing.Detail) -> None:
            self._inbox.append((event, now()))
            if len(self._inbox) >= _LONG:
                self._work_off_some()

        # Shared with other clients, so that nothing is lost when a client ends.
        return observing.ObserverSubscription(hear, self._rounds)

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
            self._read(lambda: None)

    def _read(self, read: Callable[[], ResultT]) -> ResultT:
        """Process the entries, and return what `read` returns while no other thread processes any.

        In a signal handler that interrupted the processing it processes nothing more.
        """
        with self._reentrant:
            lock = self._lock
            if lock.lock.locked():
                return read()
            with lock:
                self._work_off()
                return read()

    def _work_off(self) -> None:
        """Count all entries so far; with the lock held."""
        for _ in range(len(self._inbox)):
            self._note(*self._inbox.popleft())
        for _ in range(len(self._rounds)):
            for node, failed, seconds in self._rounds.popleft():
                if failed is None:
                    self._values[i.ROUND_TRIP, (node,)].append(seconds)
                else:
                    self._count(i.VOTES, (node, vote_reason(failed)))
        for series in list(self._values):
            if values := self._values.pop(series, None):  # None in the child of a fork by a signal handler
                self._record_all(*series, values)

    def _count(self, instrument: Instrument, labels: Labels, number: int = 1) -> None:
        self._counts[instrument][labels] += number

    def _note(self, event: observing.Event | observing.Detail, at: float) -> None:
        match event:
            case observing.AcquireEnded():
                self._note_acquire(event, at)
            case observing.HoldEnded(hold):
                self._note_end(hold, at, hold.lost)
            case observing.HoldLost(state=hold, reason=reason):
                self._note_end(hold, at, reason)
            case observing.HoldsRenewed(left):
                for hold, share in left.items():
                    if (known := self._holds.get(hold)) is not None:
                        self._values[i.MARGIN, known[0]].append(share)
            case observing.HoldOrphaned(name):
                self._count(i.ORPHANS, (self._groups.of(name),))
            case observing.WatchdogWoke(lag):
                self._values[i.LAG, ()].append(lag)

    def _note_acquire(self, event: observing.AcquireEnded, at: float) -> None:
        record, outcome, hold = event.record, event.outcome, event.hold
        _, group = labels = record.kind, self._groups.of(record.name)
        if record.limit is not None:
            self._limits[group] = record.limit
        elif record.kind == "rate_limiter" and outcome in _LIMITED:
            self._count(i.LIMITED, (group, _LIMITED[outcome]), record.wanted)
        self._count(i.ATTEMPTS, (*labels, outcome))
        for what in record.counts.keys() & _COUNTED.keys():
            self._count(_COUNTED[what], labels, record.counts[what])
        self._values[i.WAIT, (*labels, outcome)].append(at - record.started)
        if hold is not None and record.counts:  # else a re-entry, or a success without a hold
            self._holds[hold] = labels, at
            if (end := self._early.pop(hold, None)) is not None:
                self._note_end(hold, *end)

    def _note_end(self, hold: HoldState, at: float, lost: str | None) -> None:
        """Count the end of a hold, once; it may be reported before the acquire, by another thread."""
        known = self._holds.pop(hold, None)
        if known is None:
            self._early[hold] = at, lost
            if len(self._early) > _MOST_EARLY:
                del self._early[next(iter(self._early))]
            return
        labels, since = known
        if lost is not None:
            self._count(i.LOSSES, (*labels, loss_reason(lost)))
        self._values[i.HOLD, labels].append(max(at - since, 0.0))

    def _gauges(self) -> dict[Instrument, defaultdict[Labels, float]]:
        """Return the present values of each gauge; with the lock held, after all events were processed."""
        gauges = {each: defaultdict[Labels, float](float) for each in i.INSTRUMENTS if each.sort == "gauge"}
        # A list, and no iteration of the weak collection, which would fail in the child of a fork by a signal handler.
        for hold in [ref() for ref in self._holds.keyrefs()]:
            known = None if hold is None else self._holds.get(hold)
            if hold is None or known is None or self._now() >= hold.valid_until:  # lost, if not reported so far
                continue
            labels, _ = known
            gauges[i.HELD][labels] += 1
            if labels[0] == "semaphore":
                gauges[i.PERMITS][labels[1:]] += hold.count
        for group, limit in self._limits.items():
            gauges[i.PERMIT_LIMIT][(group,)] = limit
        # A list, because a client that is made meanwhile ends the iteration of a weak collection with an error.
        clients = [ref() for ref in self._clients.valuerefs()]
        for client in [each for each in clients if each is not None and not each.runner.closed]:
            records = list(client.runner.session.records.values())
            for record in [each for each in records if "waiting" in each.counts or "queued" in each.counts]:
                labels = record.kind, self._groups.of(record.name)
                gauges[i.WAITING][labels] += 1
                if record.kind == "semaphore":
                    gauges[i.LINE][labels[1:]] += record.wanted
            for status in client.nodes():
                address = (status.address,)
                for state in ("up", "down", "suspect", "quarantined"):
                    gauges[i.NODE_STATE][*address, state] += state == status.state
                gauges[i.QUARANTINE][address] = max(status.quarantine_left, gauges[i.QUARANTINE][address])
                gauges[i.PENDING][address] += status.pending
        return gauges


def _after_fork_in_child() -> None:
    for observer in list(FORKED):
        observer._begin()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_after_fork_in_child)
