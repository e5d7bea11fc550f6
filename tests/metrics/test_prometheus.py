"""The Prometheus collector: its names, and its registry."""

import pytest
from prometheus_client import CollectorRegistry

from redsync.metrics.instruments import INSTRUMENTS
from redsync.metrics.prometheus import PrometheusMetrics


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
