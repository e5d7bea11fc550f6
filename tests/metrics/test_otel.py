"""OpenTelemetry's metrics: all values for each collection, no false exemplars, and a provider of the application."""

import math
from types import SimpleNamespace

import pytest
from opentelemetry.metrics import set_meter_provider
from opentelemetry.sdk.metrics import AlwaysOnExemplarFilter, MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider

from redsync import HoldOrphaned
from redsync.metrics.instruments import INSTRUMENTS
from redsync.metrics.metrics import _after_fork_in_child
from redsync.metrics.otel import _MOST_VALUES, OpenTelemetryMetrics
from tests.support.rounds import make_round


@pytest.fixture
def reader():
    return InMemoryMetricReader()


@pytest.fixture
def provider(reader):
    provider = MeterProvider([reader], exemplar_filter=AlwaysOnExemplarFilter())
    yield provider
    provider.shutdown()


def read(reader):
    """Return the SDK's metrics by name."""
    data = reader.get_metrics_data()
    found = [
        metric for resource in data.resource_metrics for scope in resource.scope_metrics for metric in scope.metrics
    ]
    return {metric.name: metric for metric in found}


def test_metrics_have_the_names_units_and_buckets_of_the_instrument_set(reader, provider, make_client):
    with make_client(listeners=[OpenTelemetryMetrics(meter_provider=provider)]).get_lock("x"):
        found = read(reader)
    known = {instrument.name: instrument for instrument in INSTRUMENTS}
    assert found.keys() <= known.keys()
    for name, metric in found.items():
        assert (metric.unit, metric.description) == (known[name].unit, known[name].help)
    [waited] = found["redsync.acquire.duration"].data.data_points
    assert waited.explicit_bounds == known["redsync.acquire.duration"].buckets
    [held] = found["redsync.hold.active"].data.data_points
    assert dict(held.attributes) == {"redsync.kind": "lock", "redsync.name_group": "x"}


def test_exemplar_never_names_the_span_of_the_scrape(reader, provider, make_client):
    lock = make_client(listeners=[OpenTelemetryMetrics(meter_provider=provider)]).get_lock("x")
    with lock:
        pass
    with TracerProvider().get_tracer("test").start_as_current_span("scrape"):
        found = read(reader)
    for name in ("redsync.acquire.attempts", "redsync.acquire.duration"):
        [point] = found[name].data.data_points
        assert all(exemplar.trace_id is None for exemplar in point.exemplars)
    assert point.exemplars


def test_collection_gets_all_counts_but_only_the_latest_of_too_many_values(provider, reader):
    metrics = OpenTelemetryMetrics(meter_provider=provider)
    subscription = metrics.listen(lambda: 0.0)
    for each in range(5):
        subscription.rounds.extend([make_round(a=each)] * _MOST_VALUES)
        metrics._work_off_some()
    for _ in range(2 * _MOST_VALUES):
        subscription.hear(HoldOrphaned("x", "c:2"))
    found = read(reader)
    [trips] = found["redsync.node.round_trip.duration"].data.data_points
    assert (trips.count, trips.sum) == (_MOST_VALUES, 4 * _MOST_VALUES)
    [orphans] = found["redsync.hold.orphans"].data.data_points
    assert orphans.value == 2 * _MOST_VALUES
    subscription.rounds.extend(make_round(a=each) for each in range(10))
    [trips] = read(reader)["redsync.node.round_trip.duration"].data.data_points
    assert trips.count == _MOST_VALUES + 10


def test_endless_quarantine_is_left_out_without_a_warning(provider, reader, make_client, caplog):
    client = make_client(listeners=[OpenTelemetryMetrics(meter_provider=provider)], n=1)
    client.nodes = lambda: [SimpleNamespace(address="a:1", state="down", quarantine_left=math.inf, pending=0)]
    found = read(reader)
    assert "redsync.node.state" in found
    assert "redsync.node.quarantine.remaining" not in found
    assert not caplog.records


def test_global_provider_may_be_set_later(reader, provider, make_client):
    lock = make_client(listeners=[OpenTelemetryMetrics()]).get_lock("x")
    with lock:
        pass
    set_meter_provider(provider)
    [counted] = read(reader)["redsync.acquire.attempts"].data.data_points
    assert counted.value == 1


def test_child_of_a_fork_exports_no_value_of_its_parent(provider, reader):
    metrics = OpenTelemetryMetrics(meter_provider=provider)
    subscription = metrics.listen(lambda: 0.0)
    subscription.rounds.append(make_round(a=0.25))
    subscription.hear(HoldOrphaned("x", "c:2"))
    metrics._work_off_some()
    _after_fork_in_child()
    assert set(read(reader)) == {"redsync.hold.orphans"}, "counts stay"
