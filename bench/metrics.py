"""The cost of metrics: a pair of acquire and release with an observer, next to the same client without one.

An observer costs CPU time of this process and hardly any waiting, so the target is about CPU time. All sides take
turns. At the end of its turn, within the measured time, each side processes the entries that are left.

A collection is measured separately: it runs in the reader's thread, and rarely.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

from bench.measure import Figure, interleave, percentile
from redsync import Lock
from redsync._core.observing import Detail, Event, Observer, ObserverSubscription
from redsync.testing import LocalNodes

_WARM_UP, _PAIRS = 300, 256  # entries are processed when there are 256
_AT_MOST = 20.0


class Sample(NamedTuple):
    """One turn of one side: microseconds per pair."""

    p50: float
    cpu: float


class Idle(Observer):
    """An observer that receives every event at once, and stores nothing."""

    def listen(self, now: Callable[[], float]) -> ObserverSubscription:
        """Return a subscription that drops all events; see `Observer`."""

        def hear(event: Event | Detail) -> None:
            pass

        return ObserverSubscription(hear, deque(maxlen=0))


class _Side(NamedTuple):
    """An observer, the function that processes its entries, and the function that collects its metrics, if any."""

    observer: Observer
    work_off: Callable[[], object]
    collect: Callable[[], object] | None = None


def run(*, quick: bool) -> list[Figure]:
    """Measure a pair on three and on five nodes, with each observer."""
    return [figure for count in (3, 5) for figure in _run(count, 16 if quick else 100)]


def _run(count: int, rounds: int) -> list[Figure]:
    observers = {
        "idle observer": _Side(Idle(), _nothing),
        "Prometheus": _prometheus(),
        "OpenTelemetry": _otel(),
    }
    with LocalNodes(count) as nodes, ExitStack() as stack:
        sides: list[tuple[Lock, Callable[[], object]]] = [
            (stack.enter_context(nodes.client()).get_lock("metrics:0"), _nothing)
        ]
        for observer, work_off, _ in observers.values():
            client = stack.enter_context(nodes.client(listeners=[observer]))
            sides.append((client.get_lock(f"metrics:{len(sides)}"), work_off))
        for side in sides:
            _time_pairs(*side, _WARM_UP)
        without, *others = interleave([partial(_time_pairs, *side, _PAIRS) for side in sides], rounds)
    title = f"{count} nodes"
    figures = [
        _figure(f"{title}, without: CPU", statistics.median(each.cpu for each in without)),
        _figure(f"{title}, without: p50", statistics.median(each.p50 for each in without)),
    ]
    for (what, side), samples in zip(observers.items(), others, strict=True):
        cpu = statistics.median(each.cpu - bare.cpu for each, bare in zip(samples, without, strict=True))
        p50 = statistics.median(each.p50 - bare.p50 for each, bare in zip(samples, without, strict=True))
        judge = side.collect is not None
        target = f"<= {_AT_MOST:g} us" if judge else ""
        figures.append(_figure(f"{title}, {what}: CPU more", cpu, target, cpu <= _AT_MOST if judge else None))
        figures.append(_figure(f"{title}, {what}: p50 more", p50))
        if side.collect is not None:
            cpu_before = time.thread_time()
            side.collect()
            figures.append(
                _figure(f"{title}, {what}: a collection, CPU", (time.thread_time() - cpu_before) * 1e3, unit="ms")
            )
    return figures


def _figure(what: str, ours: float, target: str = "", met: bool | None = None, unit: str = "us") -> Figure:
    return Figure("metrics", what, unit, ours, target=target, met=met)


def _time_pairs(lock: Lock, work_off: Callable[[], object], count: int) -> Sample:
    clock = time.perf_counter_ns
    nanoseconds = []
    cpu = time.process_time_ns()
    for _ in range(count):
        start = clock()
        if not lock.acquire():
            raise RuntimeError("an uncontended lock was refused")
        lock.release()
        nanoseconds.append(clock() - start)
    work_off()
    cpu = time.process_time_ns() - cpu
    return Sample(percentile(nanoseconds, 50) / 1e3, cpu / count / 1e3)


def _nothing() -> None:
    pass


def _prometheus() -> _Side:
    from prometheus_client import CollectorRegistry, generate_latest

    from redsync.metrics.prometheus import PrometheusMetrics

    registry = CollectorRegistry()
    metrics = PrometheusMetrics(registry=registry)
    return _Side(metrics, metrics._work_off_some, partial(generate_latest, registry))


def _otel() -> _Side:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    from redsync.metrics.otel import OpenTelemetryMetrics

    reader = InMemoryMetricReader()
    metrics = OpenTelemetryMetrics(meter_provider=MeterProvider([reader]))
    return _Side(metrics, metrics._work_off_some, reader.get_metrics_data)
