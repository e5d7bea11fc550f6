"""`redsync exporter`: the claims on the nodes as metrics for Prometheus, without a change to any application.

1. Each scrape looks at the nodes once, as `redsync top` does; in between the exporter does nothing.
2. While too few nodes answer, it is unknown what is held: the metrics of holds and waiters have no values, and
   `look_quorum` is 0.
3. Labels are a kind, a name group and a node: see `redsync.metrics.labels`.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeAlias

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import GaugeMetricFamily, Metric

from redsync._kinds import KINDS
from redsync.cli.arguments import encoded
from redsync.cli.exits import FINE, UNAVAILABLE, SetupError
from redsync.cli.listing import MOST, View, look
from redsync.cli.output import warn
from redsync.cli.queries import Nodes
from redsync.metrics.labels import Groups, name_group

Whose: TypeAlias = tuple[str, ...]

_WHOSE: Final = ("kind", "name_group")

KEPT: Final[dict[str, tuple[str, Whose]]] = {
    "redsync_kept_node_up": ("1 if the node answered, else 0.", ("node",)),
    "redsync_kept_holds": ("Holds that a quorum of nodes knows.", _WHOSE),
    "redsync_kept_waiting": ("Owners that are waiting.", _WHOSE),
    "redsync_kept_hold_age_seconds": ("Age of the oldest hold whose begin the nodes know.", _WHOSE),
    "redsync_kept_permits": ("Permits of a semaphore or rate limiter; the largest number in the group.", _WHOSE),
    "redsync_kept_names": ("Names on the nodes.", ()),
    "redsync_kept_names_complete": ("1 if these are all names, 0 if there are more than --limit.", ()),
    "redsync_kept_look_quorum": ("1 if a quorum of nodes answered, else 0.", ()),
}
"""Each metric, a gauge: its meaning, its labels."""

_KINDS: Final = {kind.shown for kind in KINDS.values()} | {"read lock", "write lock"}
"""The values of the label `kind`; the keys of other programs are "other"."""


class Kept:
    """A collector for `prometheus_client`, with the data that a look at the nodes finds.

    Args:
        look: Looks at the nodes.
    """

    def __init__(self, look: Callable[[], View]) -> None:
        self._look: Final = look
        self._groups: Final = Groups(name_group, 200)

    def collect(self) -> Iterable[Metric]:
        """Look at the nodes, and return the metrics; for the registry."""
        view, clock, values = self._look(), time.time(), defaultdict[tuple[str, Whose], float](float)
        is_known = sum(node["error"] is None for node in view["nodes"]) >= view["quorum"]
        values["redsync_kept_look_quorum", ()] = is_known
        for node in view["nodes"]:
            values["redsync_kept_node_up", (node["node"],)] = node["error"] is None
        if is_known:
            values["redsync_kept_names", ()] = len(view["names"])
            values["redsync_kept_names_complete", ()] = not view["more"]
        for entry in view["names"] if is_known else ():
            whose = self._labels(entry["name"], entry["kind"], entry["holders"][:1])
            values["redsync_kept_holds", whose] += entry["held"]
            values["redsync_kept_waiting", whose] += entry["waiting"]
            if entry["permits"]:
                permits = values["redsync_kept_permits", whose]
                values["redsync_kept_permits", whose] = max(permits, entry["permits"])
            for holder in entry["holders"]:
                if holder["quorum"] and holder["held_since"] is not None:
                    whose = self._labels(entry["name"], entry["kind"], [holder])
                    oldest = values["redsync_kept_hold_age_seconds", whose]
                    values["redsync_kept_hold_age_seconds", whose] = max(oldest, clock - holder["held_since"])
        families = {name: GaugeMetricFamily(name, text, labels=labels) for name, (text, labels) in KEPT.items()}
        for (name, labels), value in values.items():
            families[name].add_metric(labels, value)
        return families.values()

    def _labels(self, name: str, kind: str, holders: list[dict[str, Any]]) -> Whose:
        told = f"{holders[0]['mode']} lock" if holders and holders[0]["mode"] else kind
        return told if told in _KINDS else "other", self._groups.of(name)


def exporter(options: Any) -> int:
    """Serve the metrics, until SIGTERM or Ctrl-C."""
    nodes, registry, host, port = Nodes(options), CollectorRegistry(), options.listen.hostname, options.listen.port
    registry.register(Kept(lambda: look(nodes, encoded(options.pattern), options.limit, MOST)))
    with contextlib.suppress(KeyboardInterrupt):
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            server, thread = start_http_server(port, host, registry)
        except (OSError, OverflowError) as error:
            raise SetupError(f"can't listen on {host} port {port}: {error}", UNAVAILABLE) from error
        with server:
            shown = options.listen.netloc.rpartition(":")[0]  # an IPv6 address in its brackets
            warn(f"http://{shown}:{server.server_port}/metrics serves what the nodes keep; Ctrl-C stops it")
            thread.join()
    return FINE
