"""`redsync exporter`: the claims on the nodes as metrics for Prometheus, without a change to any application.

1. One thread looks at the nodes every `--interval` seconds, as `redsync top` does. A scrape gets the result of the
   latest look and never asks a node, so more scrapes cost the nodes nothing.
2. While too few nodes answer, it is unknown what is held: the gauges for holds and waiters have no values, and
   `look_quorum` is 0. Counters keep their values.
3. Labels are a kind, a name group and a node: see `redsync.metrics.labels`.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from redsync.cli.arguments import encoded
from redsync.cli.exits import FINE, UNAVAILABLE, SetupError
from redsync.cli.listing import more_than
from redsync.cli.output import warn
from redsync.cli.queries import Nodes
from redsync.cli.top import View, holds, look
from redsync.metrics.labels import Groups, name_group

if TYPE_CHECKING:
    from prometheus_client.core import Metric

Whose: TypeAlias = tuple[str, ...]

_WHOSE: Final = ("kind", "name_group")

KEPT: Final[dict[str, tuple[str, str, Whose]]] = {
    "redsync_kept_node_up": ("gauge", "1 if the node answered the latest look, else 0.", ("node",)),
    "redsync_kept_holds": ("gauge", "Holds that a quorum of nodes knows.", _WHOSE),
    "redsync_kept_waiting": ("gauge", "Owners that are waiting.", _WHOSE),
    "redsync_kept_hold_age_seconds": (
        "gauge",
        "Age of the oldest hold whose begin the nodes know.",
        _WHOSE,
    ),
    "redsync_kept_holds_begun": ("counter", "Holds that the previous look did not find.", _WHOSE),
    "redsync_kept_holds_ended": ("counter", "Holds that the previous look found, and that have ended.", _WHOSE),
    "redsync_kept_permits": (
        "gauge",
        "Permits of a semaphore or rate limiter; the largest number in the group.",
        _WHOSE,
    ),
    "redsync_kept_names": ("gauge", "Names in the latest look.", ()),
    "redsync_kept_names_complete": ("gauge", "1 if these are all names, 0 if there are more than --limit.", ()),
    "redsync_kept_looks": ("counter", "Looks at the nodes.", ()),
    "redsync_kept_look_quorum": ("gauge", "1 if a quorum of nodes answered the latest look, else 0.", ()),
    "redsync_kept_look_timestamp_seconds": ("gauge", "When the latest look ended, in seconds since 1970.", ()),
}
"""Each metric: its type, its meaning, its labels. The names of counters get `_total` appended."""

_KINDS: Final = frozenset(
    ("lock", "fenced lock", "mutex", "read lock", "write lock", "read-write lock", "semaphore", "rate limiter", "latch")
)
"""The values of the label `kind`; the keys of other programs are "other"."""


class Kept:
    """A collector for `prometheus_client`, with the data that the looks at the nodes found.

    Args:
        max_groups: The most name groups.
    """

    def __init__(self, max_groups: int = 200) -> None:
        self._groups: Final = Groups(name_group, max_groups)
        self._lock: Final = threading.Lock()
        self._counters: Final[dict[str, dict[Whose, float]]] = {"redsync_kept_looks": {(): 0.0}}
        self._gauges: dict[str, dict[Whose, float]] = {}
        self._seen: dict[tuple[str, str, str], Whose] | None = None

    def note(self, view: View, quorum: int, clock: float) -> None:
        """Record a look at an instant in seconds since 1970.

        Its data counts only if `quorum` nodes answered.
        """
        up: dict[Whose, float] = {(node["node"],): float(node["error"] is None) for node in view["nodes"]}
        is_known = sum(up.values()) >= quorum
        gauges: dict[str, dict[Whose, float]] = {
            "redsync_kept_node_up": up,
            "redsync_kept_look_quorum": {(): float(is_known)},
            "redsync_kept_look_timestamp_seconds": {(): clock},
        }
        with self._lock:
            self._count("redsync_kept_looks", ())
            self._gauges = {**gauges, **self._known(view, clock)} if is_known else gauges

    def describe(self) -> Iterable[Metric]:
        """Return the metrics without values; for the registry."""
        return [_family(name) for name in KEPT]

    def collect(self) -> Iterator[Metric]:
        """Return the metrics as of the latest look; for the registry."""
        with self._lock:
            families = []
            for name in KEPT:
                family = _family(name)
                for labels, value in {**self._gauges.get(name, {}), **self._counters.get(name, {})}.items():
                    family.add_metric(labels, value)
                families.append(family)
        yield from families

    def _known(self, view: View, clock: float) -> dict[str, dict[Whose, float]]:
        """Return the gauges for holds and waiters; count the holds that have begun or ended."""
        held: dict[Whose, float] = {}
        waiting: dict[Whose, float] = {}
        permits: dict[Whose, float] = {}
        for entry in view["names"]:
            whose = self._labels(entry["name"], entry["kind"], entry["holders"][:1])
            _add(held, whose, entry["held"])
            _add(waiting, whose, entry["waiting"])
            if entry["permits"]:
                permits[whose] = max(permits.get(whose, 0.0), entry["permits"])
        return {
            "redsync_kept_holds": held,
            "redsync_kept_waiting": waiting,
            "redsync_kept_permits": permits,
            "redsync_kept_hold_age_seconds": self._ages(view, clock),
            "redsync_kept_names": {(): float(len(view["names"]))},
            "redsync_kept_names_complete": {(): float(not view["more"])},
        }

    def _ages(self, view: View, clock: float) -> dict[Whose, float]:
        before, seen = self._seen, holds(view)
        self._seen = {key: self._labels(key[0], hold["kind"], [hold]) for key, hold in seen.items()}
        if before is not None:  # Holds of the first look began before it.
            for key in self._seen.keys() - before.keys():
                self._count("redsync_kept_holds_begun", self._seen[key])
            for key in before.keys() - self._seen.keys():
                self._count("redsync_kept_holds_ended", before[key])
        oldest: dict[Whose, float] = {}
        for key, hold in seen.items():
            if hold.get("held_since") is not None:
                age = max(clock - hold["held_since"], 0.0)
                oldest[self._seen[key]] = max(oldest.get(self._seen[key], 0.0), age)
        return oldest

    def _labels(self, name: str, kind: str, holders: list[dict[str, Any]]) -> Whose:
        told = f"{holders[0]['mode']} lock" if holders and holders[0]["mode"] else kind
        return told if told in _KINDS else "other", self._groups.of(name)

    def _count(self, name: str, labels: Whose) -> None:
        _add(self._counters.setdefault(name, {}), labels, 1)


def exporter(options: Any) -> int:
    """Look at the nodes and serve the metrics, until SIGTERM or Ctrl-C."""
    nodes = Nodes(options)
    with contextlib.suppress(KeyboardInterrupt):
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        kept = Kept()
        has_more = False
        with _served(kept, *options.listen):
            while True:
                view = look(nodes, encoded(options.pattern), options.limit)
                kept.note(view, nodes.quorum, time.time())
                if view["more"] and not has_more:
                    warn(more_than(options.limit))
                has_more = view["more"]
                time.sleep(options.interval)
    return FINE


@contextlib.contextmanager
def _served(kept: Kept, host: str, port: int) -> Iterator[None]:
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ImportError:
        raise SetupError("needs `pip install redsync-toolkit[prometheus]`", UNAVAILABLE) from None
    registry = CollectorRegistry()
    registry.register(kept)
    try:
        server, thread = start_http_server(port, host, registry)
    except (OSError, OverflowError) as error:
        raise SetupError(f"can't listen on {host} port {port}: {error}", UNAVAILABLE) from error
    try:
        shown = f"[{host}]" if ":" in host else host
        warn(f"http://{shown}:{server.server_port}/metrics serves what the nodes keep; Ctrl-C stops it")
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _family(name: str) -> Any:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    sort, meaning, labels = KEPT[name]
    return (GaugeMetricFamily if sort == "gauge" else CounterMetricFamily)(name, meaning, labels=labels)


def _add(values: dict[Whose, float], labels: Whose, number: float) -> None:
    values[labels] = values.get(labels, 0.0) + number
