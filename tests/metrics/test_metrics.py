"""Metrics: exact counts for a scripted history, whatever the order of the reports."""

import gc
import math
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from redsync import Client, HoldLost, HoldOrphaned
from redsync._core.observing import (
    AcquireEnded,
    AcquireRecord,
    HoldEnded,
    HoldsRenewed,
    WatchdogWoke,
)
from redsync.metrics.metrics import _MOST_EARLY, Metrics, _after_fork_in_child
from tests.support.rounds import make_round
from tests.support.traced import at_each_line


class Ledger(Metrics):
    """Keeps what an exporter gets."""

    def __init__(self, **options):
        self.values = defaultdict(list)
        super().__init__(**options)

    def _record_all(self, instrument, labels, values):
        self.values[instrument.name, labels] += values

    @property
    def counts(self):
        counted = self._counts.items()
        return {(each.name, labels): number for each, counts in counted for labels, number in counts.items()}

    def gauges(self):
        return self._read(lambda: {instrument.name: values for instrument, values in self._gauges().items()})

    def take(self):
        """Return and forget all counts and values so far."""
        self.gauges()
        taken = self.counts, dict(self.values)
        self._counts.clear()
        self.values.clear()
        return taken


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


class Hold:
    """The parts of a hold that metrics read."""

    name = "order:7"

    def __init__(self, count=1, lost=None, valid_until=math.inf):
        self.count, self.lost, self.valid_until = count, lost, valid_until


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def ledger():
    return Ledger()


@pytest.fixture
def tell(ledger, clock):
    subscription = ledger.listen(clock)
    ledger.subscription = subscription

    def tell(event, at=None):
        clock.now = clock.now if at is None else at
        subscription.hear(event)

    return tell


def make_record(name="order:7", kind="lock", *, wanted=1, limit=None, started=100.0, rounds=1, splits=0, hand_overs=0):
    record = AcquireRecord(name, kind, wanted=wanted, limit=limit, started=started)
    counts = {"round": rounds, "split": splits, "handed over": hand_overs}
    record.counts = {what: number for what, number in counts.items() if number}
    return record


LOCK = ("lock", "order")


def test_hold_is_counted_from_its_acquire_to_its_release(ledger, tell):
    hold = Hold()
    tell(AcquireEnded(make_record(rounds=3, splits=2, hand_overs=1), "won", hold), at=100.25)
    assert ledger.gauges()["redsync.hold.active"] == {LOCK: 1}
    tell(HoldEnded(hold), at=102.0)
    tell(HoldEnded(hold), at=103.0)
    assert ledger.gauges()["redsync.hold.active"] == {}
    assert ledger.take() == (
        {
            ("redsync.acquire.attempts", (*LOCK, "won")): 1,
            ("redsync.acquire.rounds", LOCK): 3,
            ("redsync.acquire.splits", LOCK): 2,
            ("redsync.acquire.handovers", LOCK): 1,
        },
        {
            ("redsync.acquire.duration", (*LOCK, "won")): [0.25],
            ("redsync.hold.duration", LOCK): [1.75],
        },
    )


def test_hold_whose_end_no_client_reports_is_active_until_its_lease_ends(ledger, tell, clock):
    """Such as that of an event loop that was closed before its client."""
    hold = Hold(valid_until=130.0)
    tell(AcquireEnded(make_record(), "won", hold), at=100.25)
    clock.now = 129.9
    assert ledger.gauges()["redsync.hold.active"] == {LOCK: 1}
    clock.now = 130.0
    assert ledger.gauges()["redsync.hold.active"] == {}
    assert ledger._holds, "a loss that is reported late is counted"
    del hold
    gc.collect()
    assert not ledger._holds, "they do not pile up"


@pytest.mark.parametrize("outcome", ["busy", "no_quorum", "error"])
def test_acquire_without_success_counts_by_outcome_and_holds_nothing(ledger, tell, outcome):
    tell(AcquireEnded(make_record(), outcome), at=101.0)
    counts, values = ledger.take()
    assert counts["redsync.acquire.attempts", (*LOCK, outcome)] == 1
    assert values == {("redsync.acquire.duration", (*LOCK, outcome)): [1.0]}
    assert ledger.gauges()["redsync.hold.active"] == {}


def test_reentry_is_an_attempt_but_not_a_further_hold(ledger, tell):
    hold = Hold()
    tell(AcquireEnded(make_record(), "won", hold))
    tell(AcquireEnded(make_record(rounds=0), "won", hold))
    tell(HoldEnded(hold))
    tell(AcquireEnded(make_record(rounds=0), "won", hold))
    assert ledger.gauges()["redsync.hold.active"] == {}
    counts, _ = ledger.take()
    assert counts["redsync.acquire.attempts", (*LOCK, "won")] == 3


@pytest.mark.parametrize("first", [True, False])
def test_loss_counts_by_its_reason_even_if_reported_before_the_acquire(ledger, tell, first):
    hold = Hold(lost="its max_hold is over")
    events = [
        AcquireEnded(make_record(), "won", hold),
        HoldLost("order:7", "c:1", "its max_hold is over", hold),
    ]
    for at, event in enumerate(events if first else reversed(events), 101):
        tell(event, at=at)
    tell(HoldEnded(hold), at=105.0)
    counts, values = ledger.take()
    assert counts["redsync.hold.losses", (*LOCK, "max_hold")] == 1
    assert values["redsync.hold.duration", LOCK] == [1.0 if first else 0.0]
    assert ledger.gauges()["redsync.hold.active"] == {}


def test_loss_that_a_release_finds_counts(ledger, tell):
    hold = Hold()
    tell(AcquireEnded(make_record(), "won", hold))
    hold.lost = "at its release 3 of 5 nodes no longer kept the claim"
    tell(HoldEnded(hold))
    assert ledger.take()[0]["redsync.hold.losses", (*LOCK, "taken")] == 1


@pytest.mark.parametrize("ends", [False, True], ids=["live", "ended before they are processed"])
def test_renewals_count_for_the_holds_that_are_known(ledger, tell, ends):
    hold, other = Hold(), Hold()
    tell(AcquireEnded(make_record(), "won", hold))
    tell(HoldsRenewed({hold: 0.625, other: 0.5}))
    tell(HoldsRenewed({}))
    if ends:
        tell(HoldEnded(hold))
    _, values = ledger.take()
    assert values["redsync.hold.renewal.margin", LOCK] == [0.625]


def test_events_without_a_hold_are_counted(ledger, tell):
    tell(HoldOrphaned("order:8", "c:2"))
    tell(WatchdogWoke(0.125))
    ledger.subscription.rounds.append(make_round(b=0.25, a="no answer within 0.25 s"))
    ledger.subscription.rounds.append(make_round(b=0.5))
    assert ledger.take() == (
        {
            ("redsync.hold.orphans", ("order",)): 1,
            ("redsync.node.votes.failed", ("a", "timeout")): 1,
        },
        {
            ("redsync.watchdog.lag", ()): [0.125],
            ("redsync.node.round_trip.duration", ("b",)): [0.25, 0.5],
        },
    )


def test_limiter_counts_what_it_admits_and_refuses(ledger, tell):
    for outcome, wanted in [("won", 3), ("busy", 2), ("no_quorum", 1)]:
        tell(AcquireEnded(make_record("api", "rate_limiter", wanted=wanted), outcome))
    counts, _ = ledger.take()
    limited = {labels: number for (name, labels), number in counts.items() if name == "redsync.limiter.permits"}
    assert limited == {("api", "admitted"): 3, ("api", "refused"): 2}


def test_semaphores_report_permits_limit_and_waiters(ledger, tell):
    former = make_record("pool:1", "semaphore", limit=9)  # before a resize
    record = make_record("pool:1", "semaphore", wanted=2, limit=5)
    client = SimpleNamespaceClient([make_record("pool:1", "semaphore", wanted=3), make_record()])
    ledger.attach(client)
    hold = Hold(count=2)
    hold.name = "pool:1"
    tell(AcquireEnded(former, "busy"))
    tell(AcquireEnded(record, "won", hold))
    gauges = ledger.gauges()
    assert gauges["redsync.semaphore.permits.used"] == {("pool",): 2}
    assert gauges["redsync.semaphore.permits.limit"] == {("pool",): 5}
    assert gauges["redsync.semaphore.permits.awaited"] == {("pool",): 3}
    assert gauges["redsync.acquire.waiting"] == {("semaphore", "pool"): 1, LOCK: 1}
    client.runner.closed = True
    assert ledger.gauges()["redsync.acquire.waiting"] == {}


class SimpleNamespaceClient:
    """The parts of a client that gauges read."""

    def __init__(self, waiting):
        for each in waiting:
            each.note("waiting", 100.0)
        self.runner = SimpleNamespace(closed=False, session=SimpleNamespace(records=dict(enumerate(waiting))))

    def nodes(self):
        return []


def test_counts_of_many_threads_are_exact(ledger, tell):
    def work():
        for _ in range(2000):
            hold = Hold()
            tell(AcquireEnded(make_record(), "won", hold))
            tell(HoldEnded(hold))

    with ThreadPoolExecutor(4) as pool:
        for _ in range(4):
            pool.submit(work)
        for _ in range(20):
            ledger.gauges()
    assert ledger.gauges()["redsync.hold.active"] == {}
    assert ledger.counts["redsync.acquire.attempts", (*LOCK, "won")] == 8000
    assert len(ledger.values["redsync.hold.duration", LOCK]) == 8000


def test_collection_succeeds_although_clients_are_made_meanwhile(ledger):
    clients = []

    def make():
        clients.append(SimpleNamespaceClient([]))
        clients[-1].runner.closed = True
        ledger.attach(clients[-1])

    with Client(["redis://127.0.0.1:1"]) as client:
        ledger.attach(client)
        with at_each_line(make, 1000):
            gauges = ledger.gauges()
    assert gauges["redsync.node.state"]["127.0.0.1:1", "down"] == 1


def test_child_of_a_fork_holds_nothing(ledger, tell):
    hold = Hold()
    tell(AcquireEnded(make_record(), "won", hold))
    assert ledger.gauges()["redsync.hold.active"] == {LOCK: 1}
    before = ledger.counts
    tell(AcquireEnded(make_record(), "won", Hold()))
    ledger.subscription.rounds.append(make_round(a=0.25))
    ledger._lock.lock.acquire()
    _after_fork_in_child()
    assert ledger.gauges()["redsync.hold.active"] == {}
    assert ledger.counts == before, "what it has not counted yet is its parent's"
    assert ("redsync.node.round_trip.duration", ("a",)) not in ledger.values


def test_custom_groups_replace_the_default():
    ledger = Ledger(group_of=lambda name: "mine", max_groups=1)
    ledger.listen(lambda: 1.0).hear(HoldOrphaned("order:8", "c:2"))
    # The subscription is dropped, what it heard is not.
    assert ledger.take()[0] == {("redsync.hold.orphans", ("mine",)): 1}


def test_ends_of_unknown_holds_are_bounded(ledger, tell):
    for _ in range(_MOST_EARLY + 5):
        tell(HoldEnded(Hold()))
    ledger.take()
    assert len(ledger._early) == _MOST_EARLY
