"""Exporters: exact values for a scripted history on real nodes, scraped as text and read in memory."""

import itertools
import threading
from contextlib import contextmanager, suppress

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import Histogram, InMemoryMetricReader, Sum
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from redsync import LeaseLostError, QuorumError
from redsync.metrics.instruments import INSTRUMENTS
from redsync.metrics.otel import OpenTelemetryMetrics
from redsync.metrics.prometheus import _UNITS, PrometheusMetrics
from tests.support.locks import PATIENCE, SHORT, flush


@contextmanager
def prometheus():
    """Yield metrics, and what reads them from the text that an HTTP endpoint would serve."""
    registry = CollectorRegistry()
    metrics = PrometheusMetrics(registry=registry)

    def scrape():
        for family in text_string_to_metric_families(generate_latest(registry).decode()):
            yield from ((sample.name, sample.labels.values(), sample.value) for sample in family.samples)

    yield metrics, scrape


@contextmanager
def otel():
    """Yield metrics, and what reads them from an SDK, under the names that Prometheus has for them."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])

    def scrape():
        data = reader.get_metrics_data()
        for resource in data.resource_metrics if data else ():
            for metric in itertools.chain.from_iterable(scope.metrics for scope in resource.scope_metrics):
                name = metric.name.replace(".", "_") + _UNITS.get(metric.unit, "")
                for point in metric.data.data_points:
                    yield from samples(name, metric.data, point)

    yield OpenTelemetryMetrics(meter_provider=provider), scrape
    provider.shutdown()


def samples(name, data, point):
    assert all(key.startswith("redsync.") for key in point.attributes)
    labels = point.attributes.values()
    if isinstance(data, Histogram):
        yield f"{name}_count", labels, point.count
        yield f"{name}_sum", labels, point.sum
        bounds = (*map(str, point.explicit_bounds), "+Inf")
        for bound, total in zip(bounds, itertools.accumulate(point.bucket_counts), strict=True):
            yield f"{name}_bucket", (*labels, bound), total
    else:
        yield (f"{name}_total" if isinstance(data, Sum) else name), labels, point.value


@pytest.fixture(params=[prometheus, otel], ids=["prometheus", "otel"])
def exporter(request):
    with request.param() as exporter:
        yield exporter


@pytest.fixture
def metrics(exporter):
    return exporter[0]


@pytest.fixture
def scrape(exporter):
    """Return the value of each series by its name and the values of its labels, sorted."""
    return lambda: {(name, *sorted(labels)): value for name, labels, value in exporter[1]()}


pytestmark = pytest.mark.usefixtures("all_nodes_met")


@pytest.mark.usefixtures("both_flavours")
@pytest.mark.asyncio_too
def test_scripted_history_is_scraped_exactly(make_client, other, metrics, scrape, eventually):
    lock = make_client(listeners=[metrics]).get_fair_lock("report:2026")
    for _ in range(3):
        with lock:
            pass
    with lock, lock:
        assert not other.do(lock.acquire, False)
        waiter = other.start(lock.acquire)
        eventually(lambda: scrape().get(("redsync_acquire_waiting", "fair_lock", "report")))
        assert scrape()["redsync_hold_active", "fair_lock", "report"] == 1
    assert waiter.result(20)
    other.do(lock.release)
    found = scrape()
    whose = "fair_lock", "report"
    assert found["redsync_acquire_attempts_total", *whose, "won"] == 6
    assert found["redsync_acquire_attempts_total", "busy", *whose] == 1
    assert found["redsync_hold_duration_seconds_count", *whose] == 5
    assert found["redsync_hold_duration_seconds_bucket", "+Inf", *whose] == 5
    assert found["redsync_acquire_duration_seconds_count", *whose, "won"] == 6
    assert 0 < found["redsync_acquire_duration_seconds_sum", *whose, "won"] < 60
    assert ("redsync_hold_active", *whose) not in found
    assert ("redsync_acquire_waiting", *whose) not in found


def test_loss_after_the_wait_for_a_condition_reaches_the_callback_of_a_lock_with_metrics(
    make_client, raw, metrics, eventually
):
    told = []
    lock = make_client(listeners=[metrics], lease=SHORT).get_lock("x", on_lost=told.append)
    condition = threading.Condition(lock)
    with pytest.raises(LeaseLostError), condition:  # noqa: PT012  # the body of the lock
        condition.wait(0.01)
        flush(raw)
        eventually(lambda: told)


@pytest.mark.usefixtures("both_flavours")
def test_losses_and_renewals_are_scraped(make_client, raw, metrics, scrape, eventually):
    lock = make_client(listeners=[metrics], lease=3.0).get_lock("x")
    lock.acquire()
    renewed = "redsync_hold_renewal_margin_ratio_count", "lock", "x"
    eventually(lambda: scrape().get(renewed, 0) >= 2)
    flush(raw)
    eventually(lambda: scrape().get(("redsync_hold_losses_total", "lock", "taken", "x")) == 1)
    found = scrape()
    assert found["redsync_watchdog_lag_seconds_count",] >= 2


@pytest.mark.usefixtures("both_flavours")
@pytest.mark.asyncio_too
def test_nodes_are_scraped(make_client, nodes, metrics, scrape, eventually):
    client = make_client(listeners=[metrics], n=3)
    first, second, third = (status.address for status in client.nodes())
    lock = client.get_lock("x")
    lock.acquire()
    eventually(lambda: scrape()["redsync_node_state", second, "up"] == 1)
    nodes.kill(0)
    eventually(lambda: scrape()["redsync_node_state", *sorted([first, "down"])] == 1)
    lock.release()
    found = scrape()
    assert found["redsync_node_state", *sorted([first, "up"])] == 0

    def counts_votes_as_down():
        # The others may decide the first round before its connection is known to have ended.
        lock.acquire()
        lock.release()
        return scrape().get(("redsync_node_votes_failed_total", *sorted([first, "down"])), 0) >= 1

    eventually(counts_votes_as_down)
    # A release may return before the node that is down has its own among its pending releases.
    eventually(lambda: scrape()["redsync_node_releases_pending", first] >= 1)
    assert found["redsync_node_releases_pending", second] == 0
    assert found["redsync_node_quarantine_remaining_seconds", third] == 0
    assert found["redsync_node_round_trip_duration_seconds_count", second] >= 1
    nodes.restart(0)
    eventually(lambda: scrape()["redsync_node_releases_pending", first] == 0)
    with suppress(QuorumError):
        make_client(listeners=[metrics], n=3, restart_guard=300.0).get_lock("y").acquire(False)
    eventually(lambda: 0 < scrape()["redsync_node_quarantine_remaining_seconds", first] <= 300)
    eventually(lambda: scrape()["redsync_node_state", *sorted([first, "quarantined"])] == 1)
    assert scrape()["redsync_node_round_trip_duration_seconds_sum", second] < PATIENCE


@pytest.mark.usefixtures("both_flavours")
@pytest.mark.asyncio_too
def test_limiters_and_semaphores_are_scraped(make_client, metrics, scrape):
    client = make_client(listeners=[metrics])
    limiter = client.get_rate_limiter("api:2", 3, 60)
    assert limiter.acquire(n=2)
    assert not limiter.acquire(False, n=2)
    semaphore = client.get_semaphore("pool:1", 3)
    with semaphore:
        permit = semaphore.acquire(n=2)
        found = scrape()
        assert found["redsync_semaphore_permits_used", "pool"] == 3
        assert found["redsync_semaphore_permits_limit", "pool"] == 3
        permit.release()
    assert found["redsync_limiter_permits_total", "admitted", "api"] == 2
    assert found["redsync_limiter_permits_total", "api", "refused"] == 2


# The collector of Prometheus.


def test_collector_names_its_metrics_before_the_first_event():
    metrics = PrometheusMetrics(registry=None)
    described = {family.name for family in metrics.describe()}
    assert len(described) == len(INSTRUMENTS)
    assert described == {family.name for family in metrics.collect()}


def test_registry_refuses_a_second_set():
    registry = CollectorRegistry()
    PrometheusMetrics(registry=registry)
    with pytest.raises(ValueError, match="Duplicated"):
        PrometheusMetrics(registry=registry)
    assert PrometheusMetrics(registry=None, group_of=str, max_groups=5) is not None
