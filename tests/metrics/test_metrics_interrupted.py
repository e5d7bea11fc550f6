"""Metrics while something interrupts the work at any point: a signal's handler, or an exception that it raises."""

import pytest
from prometheus_client import CollectorRegistry

from redsync import HoldLost
from redsync._core.observing import AcquireEnded, HoldEnded
from redsync.metrics import instruments as i
from redsync.metrics.prometheus import PrometheusMetrics
from tests.metrics.test_exporters import otel, prometheus
from tests.metrics.test_metrics import LOCK, Clock, Hold, Ledger, make_record
from tests.support.injection import inject_at_calls as inject

WINS, RE_ENTRIES, BUSY, ROUNDS = 5, 3, 2, 4


def note_some(hear):
    """Note acquires of each sort, and the ends of their holds."""
    for _ in range(WINS):
        hold = Hold()
        hear(AcquireEnded(make_record(rounds=ROUNDS, splits=1, hand_overs=1), "won", hold))
        hear(HoldLost("order:7", "c:1", "its max_hold is over", hold))
        hear(AcquireEnded(make_record("api", "rate_limiter", wanted=2), "won"))
    for _ in range(RE_ENTRIES):
        hear(AcquireEnded(make_record(rounds=0), "won", Hold()))
    for _ in range(BUSY):
        hear(AcquireEnded(make_record(rounds=ROUNDS), "busy"))


EVERY = 2 * WINS + RE_ENTRIES + BUSY


def test_interruption_at_any_point_loses_at_most_one_entry():
    point, where = 0, ""
    while where is not None:
        point += 1
        ledger = Ledger()
        note_some(ledger.listen(Clock()).hear)
        where = inject(point, ledger._work_off_some)
        assert not ledger._lock.lock.locked(), where
        ledger.gauges()
        counted = sum(number for (name, _), number in ledger.counts.items() if name == "redsync.acquire.attempts")
        assert EVERY - 1 <= counted <= EVERY, where
        assert WINS - 1 <= ledger.counts["redsync.hold.losses", (*LOCK, "max_hold")] <= WINS, where
        timed = sum(len(values) for (name, _), values in ledger.values.items() if name == "redsync.acquire.duration")
        assert timed <= EVERY, where
    assert point > 50


def test_handler_that_acquires_at_any_point_of_the_work_is_counted():
    point, where = 0, ""
    while where is not None:
        point += 1
        ledger = Ledger()
        subscription = ledger.listen(Clock())
        note_some(subscription.hear)

        def handle(ledger=ledger, subscription=subscription):
            hold = Hold()
            subscription.hear(AcquireEnded(make_record(), "won", hold))
            ledger._work_off_some()
            subscription.hear(HoldEnded(hold))

        where = inject(point, ledger._work_off_some, handle)
        ledger.gauges()
        won = WINS + RE_ENTRIES + (where is not None)
        assert ledger.counts["redsync.acquire.attempts", (*LOCK, "won")] == won, where
        assert len(ledger.values["redsync.acquire.duration", (*LOCK, "won")]) == won, where
        assert len(ledger.values["redsync.hold.duration", LOCK]) == WINS + (where is not None), where
    assert point > 50


@pytest.mark.parametrize("make", [prometheus, otel])
def test_handler_that_collects_at_any_point_of_the_work_neither_waits_nor_loses_counts(make, seed):
    counted = "redsync_acquire_attempts_total", "redsync_acquire_duration_seconds_count"
    point, where = 1 - seed % 5, ""
    while where is not None:
        point += 5
        with make() as (metrics, scrape):

            def collect(scrape=scrape):
                found = list(scrape())
                return [sum(value for name, _, value in found if name == each) for each in counted]

            hear = metrics.listen(Clock()).hear
            note_some(hear)
            seen = []
            where = inject(point, metrics._work_off_some, lambda: seen.extend(collect()))  # noqa: B023
            assert all(0 <= count <= EVERY for count in seen), where
            assert collect() == [EVERY, EVERY], where
    assert point > 50


def test_interrupted_histogram_of_prometheus_has_all_of_a_batch_or_nothing():
    point, where = 0, ""
    while where is not None:
        point += 1
        metrics = PrometheusMetrics(registry=CollectorRegistry())
        where = inject(point, lambda metrics=metrics: metrics._record_all(i.WAIT, LOCK, [0.5] * 256))
        for counts, total in metrics._histograms.get(i.WAIT, {}).values():
            assert (sum(counts), total) == (256, 128.0), where
    assert point > 5
