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

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
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


class _Histogram:
    """The values of one histogram with certain labels, by bucket."""

    __slots__ = ("counts", "total")

    def __init__(self, buckets: int) -> None:
        self.counts = [0] * (buckets + 1)
        self.total = 0.0


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
        self._histograms: dict[Instrument, dict[Labels, _Histogram]] = {}
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
        gauges = dict(self._gauges())
        return [self._filled(instrument, gauges.get(instrument, {})) for instrument in INSTRUMENTS]

    def _filled(self, instrument: Instrument, gauges: dict[Labels, float]) -> _Family:
        family = _family(instrument)
        match family:
            case HistogramMetricFamily():
                for labels, histogram in self._histograms.get(instrument, {}).items():
                    family.add_metric(labels, _cumulated(instrument, histogram), histogram.total)
            case CounterMetricFamily():
                for labels, number in self._counts.get(instrument, {}).items():
                    family.add_metric(labels, number)
            case GaugeMetricFamily():
                for labels, value in gauges.items():
                    family.add_metric(labels, value)
        return family

    def _record_all(self, instrument: Instrument, labels: Labels, values: list[float]) -> None:
        series = self._histograms.setdefault(instrument, {})
        histogram = series.get(labels)
        if histogram is None:
            histogram = series[labels] = _Histogram(len(instrument.buckets))
        values.sort()
        counts, total, below = histogram.counts[:], histogram.total + sum(values), 0
        for bucket, bound in enumerate(instrument.buckets):
            if below == len(values):
                break
            end = bisect_right(values, bound, below)
            counts[bucket] += end - below
            below = end
        counts[-1] += len(values) - below
        # In one step, so that no interruption comes between the two.
        histogram.counts, histogram.total = counts, total


def _family(instrument: Instrument) -> _Family:
    name = instrument.name.replace(".", "_") + _UNITS.get(instrument.unit, "")
    made = {"counter": CounterMetricFamily, "histogram": HistogramMetricFamily, "gauge": GaugeMetricFamily}
    family: _Family = made[instrument.sort](name, instrument.help, labels=instrument.labels)
    return family


def _cumulated(instrument: Instrument, histogram: _Histogram) -> list[tuple[str, float]]:
    """Return the upper bound of each bucket, and the number of values up to it."""
    total, buckets = 0, []
    for bound, number in zip((*map(str, instrument.buckets), "+Inf"), histogram.counts, strict=True):
        total += number
        buckets.append((bound, float(total)))
    return buckets
