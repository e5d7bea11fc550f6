"""Traces for OpenTelemetry: a span for each acquire, and a span for each hold that it won.

```python
from redsync import Client
from redsync.metrics.traces import OpenTelemetryTraces

client = Client(urls, listeners=[OpenTelemetryTraces()])
```

The application provides sampling, processors and exporters through the tracer provider of its SDK.

An acquire is reported when it is over, in the thread or task that called it. So its span is a child of that caller's
span, and gets its start time and its events afterwards. A hold may end in any thread, and its end may even be reported
before the acquire that won it. The later of the two reports ends the span: a hold shows its end before it is reported,
and the acquire's report stores the span before it looks for the end. So no signal handler can deadlock on a lock.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Final
from weakref import WeakKeyDictionary

try:
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider, get_tracer
except ImportError as error:  # pragma: no cover
    raise ImportError("redsync.metrics.traces needs `pip install redsync-toolkit[otel]`") from error

from redsync._core.holds import HoldState
from redsync._core.observing import AcquireEnded, Detail, Event, HoldEnded, HoldLost, Observer, ObserverSubscription
from redsync.metrics.labels import loss_reason
from redsync.metrics.metrics import FORKED

__all__ = ["OpenTelemetryTraces"]


class OpenTelemetryTraces(Observer):
    """A listener of clients that records a span for each acquire and each hold; one serves any number of clients.

    Spans are called `acquire lock`, `hold lock` and so on, by kind. They have the name as an attribute, never an owner.
    A hold's span begins when the acquire that won it ends, and links to that acquire's span. A re-entry is an acquire,
    but not a second hold. The child of a fork has no holds, so it ends none of its parent's spans.

    Args:
        tracer_provider: The provider of the tracer; None: the global one.
    """

    def __init__(self, *, tracer_provider: TracerProvider | None = None) -> None:
        self._tracer: Final = get_tracer("redsync", tracer_provider=tracer_provider)
        self._begin()
        FORKED.add(self)

    def _begin(self) -> None:
        # Weak, because of an event loop that is closed before its client no one reports the ends of holds.
        self._open: WeakKeyDictionary[HoldState, Span] = WeakKeyDictionary()

    def listen(self, now: Callable[[], float]) -> ObserverSubscription:
        """Return the subscription for a client; see `Observer`."""

        def hear(event: Event | Detail) -> None:
            wall = time.time_ns()
            match event:
                case AcquireEnded():
                    self._trace_acquire(event, wall, wall - round(now() * 1e9))
                case HoldEnded(hold) | HoldLost(state=hold):
                    self._trace_end(hold, wall)

        return ObserverSubscription(hear, deque(maxlen=0))

    def _trace_acquire(self, event: AcquireEnded, wall: int, epoch: int) -> None:
        record, outcome, hold = event.record, event.outcome, event.hold
        name = record.name.decode("utf-8", "backslashreplace") if isinstance(record.name, bytes) else record.name
        whose = {"redsync.kind": record.kind, "redsync.name": name}
        span = self._tracer.start_span(
            f"acquire {record.kind}",
            kind=SpanKind.CLIENT,
            attributes={**whose, "redsync.outcome": outcome, "redsync.rounds": record.counts.get("round", 0)},
            start_time=epoch + round(record.started * 1e9),
        )
        for step in record.steps:
            votes = dict(zip(("redsync.granted", "redsync.refused", "redsync.failed"), step.votes or (), strict=False))
            span.add_event(step.what, votes, epoch + round(step.at * 1e9))
        if event.error:
            span.set_attribute("error.type", event.error)
            span.set_status(Status(StatusCode.ERROR, event.error))
        span.end(wall)
        if hold is not None and record.counts:
            self._trace_hold(hold, whose, wall, span)

    def _trace_hold(self, hold: HoldState, whose: dict[str, str], wall: int, acquire: Span) -> None:
        span = self._tracer.start_span(
            f"hold {whose['redsync.kind']}",
            attributes={**whose, "redsync.lease": hold.lease},
            links=[Link(acquire.get_span_context())],
            start_time=wall,
        )
        if hold.fencing_token is not None:
            span.set_attribute("redsync.fencing_token", hold.fencing_token)
        self._open[hold] = span
        if hold.lost is not None or not hold.live:
            self._trace_end(hold, wall)

    def _trace_end(self, hold: HoldState, wall: int) -> None:
        """End the span of a hold, once, if the span is known."""
        span = self._open.pop(hold, None)
        if span is None:
            return
        if hold.lost is not None:
            span.add_event("lost", {"redsync.reason": loss_reason(hold.lost)}, wall)
            span.set_status(Status(StatusCode.ERROR, hold.lost))
        span.end(wall)
