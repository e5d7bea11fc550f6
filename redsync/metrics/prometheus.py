"""Metrics for Prometheus: a collector for `prometheus_client`.

```python
from prometheus_client import start_http_server
from redsync import Client
from redsync.metrics.prometheus import PrometheusMetrics

client = Client(urls, listeners=[PrometheusMetrics()])
start_http_server(9000)
```
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from typing import TypeAlias

try:
    from prometheus_client import REGISTRY, CollectorRegistry
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
    from prometheus_client.registry import Collector
except ImportError as error:  # pragma: no cover
    raise ImportError("redsync.metrics.prometheus needs `pip install redsync-toolkit[prometheus]`") from error

from redsync.metrics.instruments import INSTRUMENTS, Instrument
from redsync.metrics.metrics import Labels, Metrics

__all__ = ["PrometheusMetrics"]

_Family: TypeAlias = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily

_UNITS = {"s": "_seconds", "1": "_ratio"}


class PrometheusMetrics(Metrics, Collector):
    """A listener of clients that a Prometheus registry collects; one serves any number of clients.

    Args:
        registry: The registry that collects it; None: none yet.
        group_of: A function that returns the name group of a name, one of few; None: `redsync.metrics.name_group`.
        max_groups: The most name groups; names of further groups count as "other".

    Raises:
        TypeError: `group_of` is not a function.
        ValueError: `max_groups` is not a positive number, or the registry has these metrics already.
    """

    def __init__(
        self,
        *,
        registry: CollectorRegistry | None = REGISTRY,
        group_of: Callable[[str | bytes], str] | None = None,
        max_groups: int = 200,
    ) -> None:
        self._histograms: dict[Instrument, dict[Labels, tuple[list[int], float]]] = {}
        super().__init__(group_of=group_of, max_groups=max_groups)
        if registry is not None:
            registry.register(self)

    def describe(self) -> Iterable[_Family]:
        """Return the metrics without values; for the registry."""
        return [_family(instrument) for instrument in INSTRUMENTS]

    def collect(self) -> Iterator[_Family]:
        """Return the metrics with their present values; for the registry."""
        yield from self._read(self._families)

    def _families(self) -> list[_Family]:
        values: dict[Instrument, Mapping[Labels, float]] = {**self._counts, **self._gauges()}
        return [self._filled(instrument, values.get(instrument, {})) for instrument in INSTRUMENTS]

    def _filled(self, instrument: Instrument, values: Mapping[Labels, float]) -> _Family:
        family = _family(instrument)
        if isinstance(family, HistogramMetricFamily):
            bounds = (*map(str, instrument.buckets), "+Inf")
            for labels, (counts, total) in self._histograms.get(instrument, {}).items():
                family.add_metric(labels, list(zip(bounds, accumulate(counts), strict=True)), total)
            return family
        for labels, value in values.items():
            family.add_metric(labels, value)
        return family

    def _record_all(self, instrument: Instrument, labels: Labels, values: list[float]) -> None:
        series = self._histograms.setdefault(instrument, {})
        known, total = series.get(labels) or ([0] * (len(instrument.buckets) + 1), 0.0)
        counts = known[:]
        for value in values:
            counts[bisect_left(instrument.buckets, value)] += 1
        # In one step, so that no interruption comes between the two.
        series[labels] = counts, total + sum(values)


def _family(instrument: Instrument) -> _Family:
    name = instrument.name.replace(".", "_") + _UNITS.get(instrument.unit, "")
    made = {"counter": CounterMetricFamily, "histogram": HistogramMetricFamily, "gauge": GaugeMetricFamily}
    family: _Family = made[instrument.sort](name, instrument.help, labels=instrument.labels)
    return family
