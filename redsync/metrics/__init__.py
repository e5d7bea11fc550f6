"""Metrics of clients: one set of instruments, fed by observers, with exporters for Prometheus and OpenTelemetry.

1. An exporter is one of the client's `listeners`: `Client(urls, listeners=[PrometheusMetrics()])`. One serves
   any number of clients.
2. `instruments` lists every metric once: name, unit, labels, buckets. Exporters add none.
3. `metrics.Metrics` turns events into counts and values; an exporter publishes them.
4. A caller only appends to lists and deques, without a lock. The entries are processed at the next collection, or when
   there are many. So an acquire and release pays little, and a signal handler can't deadlock.
5. A collection reads current values (holds, waiters, node states) from holds and clients.
6. A label is a synchronizer's kind, its *name group* (see `labels`), a node, an outcome, or a reason from a short list:
   never a name, an owner or free text. A set of instruments has at most `max_groups` groups.
7. `traces` records spans, which carry names. It is not built on `Metrics`: the thread or task that acquires must make
   the span, because only there is its context current.
8. An exporter's module imports the exporter's library; no other module does.
"""

from __future__ import annotations

from redsync.metrics.labels import name_group

__all__ = ["name_group"]
