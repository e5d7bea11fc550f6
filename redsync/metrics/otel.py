"""Metrics for OpenTelemetry: the instrument set on a meter of its API.

```python
from redsync import Client
from redsync.metrics.otel import OpenTelemetryMetrics

client = Client(urls, listeners=[OpenTelemetryMetrics()])
```

Readers, views and exporters are the application's, through the meter provider of its SDK.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final

try:
    from opentelemetry.context import Context
    from opentelemetry.metrics import (
        CallbackOptions,
        Counter,
        Histogram,
        Meter,
        MeterProvider,
        Observation,
        get_meter,
    )
    from opentelemetry.trace import INVALID_SPAN, set_span_in_context
except ImportError as error:  # pragma: no cover
    raise ImportError("redsync.metrics.otel needs `pip install redsync-toolkit[otel]`") from error

from redsync.metrics.instruments import INSTRUMENTS, Instrument
from redsync.metrics.metrics import Labels, Metrics

__all__ = ["OpenTelemetryMetrics"]

_NO_SPAN: Final = set_span_in_context(INVALID_SPAN, Context())
"""The span of the thread that works events off is not the one in which they happened: no exemplar may name it."""


class OpenTelemetryMetrics(Metrics):
    """A listener of clients that records metrics with OpenTelemetry; one serves any number of clients.

    Use one for each meter provider: instruments of the same name would be exported twice.

    Args:
        meter_provider: Whose meter to use; None: the global provider's.
        group_of: Returns the name group of a name, which must have few results; None: `redsync.metrics.name_group`.
        max_groups: The most name groups; names of further ones count as "other".

    Raises:
        TypeError: `group_of` is no function.
        ValueError: `max_groups` is not a positive number.
    """

    def __init__(
        self,
        *,
        meter_provider: MeterProvider | None = None,
        group_of: Callable[[str | bytes], str] | None = None,
        max_groups: int = 200,
    ) -> None:
        super().__init__(group_of=group_of, max_groups=max_groups)
        self._counters: Final[dict[Instrument, Counter]] = {}
        self._histograms: Final[dict[Instrument, Histogram]] = {}
        meter = get_meter("redsync", meter_provider=meter_provider)
        for instrument in INSTRUMENTS:
            self._create(meter, instrument)

    def _begin(self) -> None:
        super()._begin()
        self._snapshot: dict[Instrument, dict[Labels, float]] = {}

    def _create(self, meter: Meter, instrument: Instrument) -> None:
        name, unit, text = instrument.name, instrument.unit, instrument.help
        match instrument.sort:
            case "counter":
                self._counters[instrument] = meter.create_counter(name, unit, text)
            case "histogram":
                self._histograms[instrument] = meter.create_histogram(
                    name, unit, text, explicit_bucket_boundaries_advisory=instrument.buckets
                )
            case "gauge":
                meter.create_observable_gauge(name, [partial(self._observe, instrument)], unit, text)

    def _count(self, instrument: Instrument, labels: Labels, number: int = 1) -> None:
        self._counters[instrument].add(number, _attributes(instrument, labels), _NO_SPAN)

    def _record(self, instrument: Instrument, labels: Labels, value: float) -> None:
        self._histograms[instrument].record(value, _attributes(instrument, labels), _NO_SPAN)

    def _observe(self, instrument: Instrument, _: CallbackOptions) -> Iterable[Observation]:
        """Return the present values of one gauge.

        A collection asks gauge after gauge. The first that finds its part of the snapshot used takes a new one for all.
        An SDK asks before it reads counters and histograms, so these have all that was heard until then.
        """
        with self._lock:
            if instrument not in self._snapshot:
                self._work_off()
                self._snapshot.update(self._gauges())
            values = self._snapshot.pop(instrument)
        return _observations(instrument, values)


def _observations(instrument: Instrument, values: dict[Labels, float]) -> Iterator[Observation]:
    for labels, value in values.items():
        yield Observation(value, _attributes(instrument, labels))


def _attributes(instrument: Instrument, labels: Labels) -> dict[str, str]:
    return {f"redsync.{name}": label for name, label in zip(instrument.labels, labels, strict=True)}
