"""Metrics for OpenTelemetry: the set of instruments on a meter of its API.

```python
from redsync import Client
from redsync.metrics.otel import OpenTelemetryMetrics

client = Client(urls, listeners=[OpenTelemetryMetrics()])
```

The application provides readers, views and exporters through the meter provider of its SDK.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from math import isfinite
from typing import Final, TypeAlias

try:
    from opentelemetry.context import Context
    from opentelemetry.metrics import CallbackOptions, Histogram, MeterProvider, Observation, get_meter
    from opentelemetry.trace import INVALID_SPAN, set_span_in_context
except ImportError as error:  # pragma: no cover
    raise ImportError("redsync.metrics.otel needs `pip install redsync-toolkit[otel]`") from error

from redsync.metrics.instruments import INSTRUMENTS, Instrument
from redsync.metrics.metrics import Labels, Metrics

__all__ = ["OpenTelemetryMetrics"]

_NO_SPAN: Final = set_span_in_context(INVALID_SPAN, Context())
"""The span of the thread that processes events is not the one in which they happened: no exemplar may name it."""

_MOST_VALUES: Final = 1000
"""The most values of one series per collection: the SDK takes 4 us for each; these suffice for a 99th percentile."""

_Samples: TypeAlias = defaultdict[tuple[Instrument, Labels], deque[float]]
"""The latest values of each series since the last collection."""


class OpenTelemetryMetrics(Metrics):
    """A listener of clients that records metrics with OpenTelemetry; one serves any number of clients.

    Use one for each meter provider: a second one would export each instrument twice.

    Counters and gauges are observed when a reader collects. Histograms get their values then, one by one, as the API
    requires. So if a series has more than 1,000 values, a collection gets the latest 1,000. Counters stay exact.

    Args:
        meter_provider: The provider of the meter; None: the global one.
        group_of: A function that returns the name group of a name, one of few; None: `redsync.metrics.name_group`.
        max_groups: The most name groups; names of further groups count as "other".

    Raises:
        TypeError: `group_of` is not a function.
        ValueError: `max_groups` is not a positive number.
    """

    def __init__(
        self,
        *,
        meter_provider: MeterProvider | None = None,
        group_of: Callable[[str | bytes], str] | None = None,
        max_groups: int = 200,
    ) -> None:
        self._samples = _no_samples()
        super().__init__(group_of=group_of, max_groups=max_groups)
        self._histograms: Final[dict[Instrument, Histogram]] = {}
        meter = get_meter("redsync", meter_provider=meter_provider)
        observed = {"counter": meter.create_observable_counter, "gauge": meter.create_observable_gauge}
        for instrument in INSTRUMENTS:
            name, unit, text = instrument.name, instrument.unit, instrument.help
            if instrument.sort == "histogram":
                self._histograms[instrument] = meter.create_histogram(
                    name, unit, text, explicit_bucket_boundaries_advisory=instrument.buckets
                )
            else:
                observed[instrument.sort](name, [partial(self._observe, instrument)], unit, text)

    def _begin(self) -> None:
        super()._begin()
        self._samples = _no_samples()

    def _record_all(self, instrument: Instrument, labels: Labels, values: list[float]) -> None:
        self._samples[instrument, labels].extend(values)

    def _observe(self, instrument: Instrument, _: CallbackOptions) -> Iterable[Observation]:
        """Return the present values of one counter or gauge, and pass on those of histograms.

        An SDK observes instruments before it reads histograms, so these have all values so far.
        """
        samples = _no_samples()
        with self._reentrant:
            is_gauge, count = instrument.sort == "gauge", self._counts[instrument]
            values: Mapping[Labels, float] = self._read(lambda: self._gauges()[instrument] if is_gauge else dict(count))
            # Not in a signal handler that interrupted this thread's work, which may be adding to one of them.
            if not self._lock.lock.locked():
                samples, self._samples = self._samples, samples
        # Outside the locks: this takes a while, and other threads may process entries meanwhile.
        for (histogram, labels), sample in samples.items():
            record, attributes = self._histograms[histogram].record, _attributes(histogram, labels)
            for value in sample:
                record(value, attributes, _NO_SPAN)
        # The SDK would log a warning about infinity at each collection.
        known = ((labels, value) for labels, value in values.items() if isfinite(value))
        return [Observation(value, _attributes(instrument, labels), _NO_SPAN) for labels, value in known]


def _no_samples() -> _Samples:
    return defaultdict(lambda: deque(maxlen=_MOST_VALUES))


def _attributes(instrument: Instrument, labels: Labels) -> dict[str, str]:
    return {f"redsync.{name}": label for name, label in zip(instrument.labels, labels, strict=True)}
