"""Metrics of clients: one instrument set, fed by what observers hear; exporters for Prometheus and OpenTelemetry.

1. An exporter is one of the client's `listeners`: `Client(urls, listeners=[PrometheusMetrics()])`. One serves
   any number of clients.
2. `instruments` lists every metric, once: name, unit, labels, buckets. Exporters add nothing of their own.
3. `metrics.Metrics` turns events into counts and values; an exporter says what becomes of these.
4. A caller only appends an event to a deque, under no lock. The events are worked off when somebody collects, or when
   there are many: so a pair of acquire and release pays little, and a signal's handler can't deadlock.
5. What is true at an instant (held, waiting, node states) is read at the collection, from holds and clients.
6. A label is a synchronizer's kind, its *name group* (see `groups`), a node, an outcome, or a reason out of a short
   list: never a name, an owner or free text. A set never has more groups than `max_groups`.
7. `traces` records spans, which carry names. It shares no code with metrics: a span is made where its context is.
8. An exporter imports its library when it is imported, and nothing else imports that.
"""

from __future__ import annotations

from redsync.metrics.groups import name_group

__all__ = ["name_group"]
