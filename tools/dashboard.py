"""Write the Grafana dashboard for the documentation: `python tools/dashboard.py`; `--check` reports a stale file.

Each row of panels answers one question. tests/metrics/test_dashboard.py fails if an expression uses a metric or label
that no exporter has.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

FILE: Final = Path(__file__).parents[1] / "docs" / "operate" / "dashboard.json"

_WHOSE: Final = 'kind=~"$kind",name_group=~"$group"'
_GROUP: Final = 'name_group=~"$group"'
_ATTEMPTS: Final = "redsync_acquire_attempts_total"
_ROUNDS: Final = "redsync_acquire_rounds_total"
_WINDOW: Final = "[$__rate_interval]"
_SOURCE: Final = {"type": "prometheus", "uid": "${source}"}
_COLUMNS: Final = 24
_HEIGHT: Final = 8


@dataclass(frozen=True)
class Panel:
    """One panel.

    Attributes:
        title: The heading above it.
        unit: Grafana's name for the unit.
        lines: Expressions, each with its legend.
    """

    title: str
    unit: str
    lines: tuple[tuple[str, str], ...]


def _rate(metric: str, by: str, matching: str) -> str:
    return f"sum by ({by}) (rate({metric}{{{matching}}}{_WINDOW}))"


def _quantile(part: float, metric: str, by: str = "", matching: str = "") -> str:
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({part}, sum by ({labels}) (rate({metric}_bucket{{{matching}}}{_WINDOW})))"


def _quantiles(metric: str, by: str = "", matching: str = "") -> tuple[tuple[str, str], ...]:
    legend = f"{{{{{by}}}}} " if by else ""
    return tuple((_quantile(part, metric, by, matching), f"{legend}{part:.0%}") for part in (0.5, 0.99))


ROWS: Final[dict[str, tuple[Panel, ...]]] = {
    "Do callers get what they ask for?": (
        Panel(
            "Acquires by outcome",
            "ops",
            ((_rate(_ATTEMPTS, "outcome", _WHOSE), "{{outcome}}"),),
        ),
        Panel("Time to acquire", "s", _quantiles("redsync_acquire_duration_seconds", "name_group", _WHOSE)),
        Panel(
            "Held and waiting",
            "short",
            (
                (f"sum by (name_group) (redsync_hold_active{{{_WHOSE}}})", "{{name_group}} held"),
                (f"sum by (name_group) (redsync_acquire_waiting{{{_WHOSE}}})", "{{name_group}} waiting"),
            ),
        ),
    ),
    "Are holds safe?": (
        Panel(
            "Holds lost, by reason", "short", ((_rate("redsync_hold_losses_total", "reason", _WHOSE), "{{reason}}"),)
        ),
        Panel(
            "Share of the lease left at renewal",
            "percentunit",
            ((_quantile(0.01, "redsync_hold_renewal_margin_ratio", "name_group", _WHOSE), "{{name_group}} 1%"),),
        ),
        Panel("Time held", "s", _quantiles("redsync_hold_duration_seconds", "name_group", _WHOSE)),
    ),
    "Where is contention?": (
        Panel(
            "Hand-overs",
            "ops",
            ((_rate("redsync_acquire_handovers_total", "name_group", _WHOSE), "{{name_group}}"),),
        ),
        Panel(
            "Rounds per acquire",
            "short",
            ((f"{_rate(_ROUNDS, 'name_group', _WHOSE)} / {_rate(_ATTEMPTS, 'name_group', _WHOSE)}", "{{name_group}}"),),
        ),
        Panel(
            "Split votes",
            "ops",
            ((_rate("redsync_acquire_splits_total", "name_group", _WHOSE), "{{name_group}}"),),
        ),
    ),
    "Do the nodes take part?": (
        Panel(
            "Clients that see a node", "short", (("sum by (node, state) (redsync_node_state)", "{{node}} {{state}}"),)
        ),
        Panel("Round trip time", "s", _quantiles("redsync_node_round_trip_duration_seconds", "node")),
        Panel(
            "Failed votes",
            "ops",
            ((_rate("redsync_node_votes_failed_total", "node, reason", ""), "{{node}} {{reason}}"),),
        ),
        Panel("Quarantine left", "s", (("max by (node) (redsync_node_quarantine_remaining_seconds)", "{{node}}"),)),
        Panel("Releases pending", "short", (("sum by (node) (redsync_node_releases_pending)", "{{node}}"),)),
        Panel("Watchdog lag", "s", _quantiles("redsync_watchdog_lag_seconds")),
    ),
    "Semaphores and rate limiters": (
        Panel(
            "Permits in use, limit, awaited",
            "short",
            (
                (f"sum by (name_group) (redsync_semaphore_permits_used{{{_GROUP}}})", "{{name_group}} in use"),
                (f"max by (name_group) (redsync_semaphore_permits_limit{{{_GROUP}}})", "{{name_group}} limit"),
                (f"sum by (name_group) (redsync_semaphore_permits_awaited{{{_GROUP}}})", "{{name_group}} awaited"),
            ),
        ),
        Panel(
            "Admitted and refused",
            "ops",
            ((_rate("redsync_limiter_permits_total", "name_group, outcome", _GROUP), "{{name_group}} {{outcome}}"),),
        ),
    ),
    "What the nodes keep (redsync exporter)": (
        Panel("Held", "short", ((f"sum by (name_group) (redsync_kept_holds{{{_WHOSE}}})", "{{name_group}}"),)),
        Panel("Waiting", "short", ((f"sum by (name_group) (redsync_kept_waiting{{{_WHOSE}}})", "{{name_group}}"),)),
        Panel(
            "Age of the oldest hold",
            "s",
            ((f"max by (name_group) (redsync_kept_hold_age_seconds{{{_WHOSE}}})", "{{name_group}}"),),
        ),
    ),
}
"""Rows: a question, and the panels that answer it."""


def dashboard() -> dict[str, Any]:
    """Return the dashboard as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    top = 0
    for question, row in ROWS.items():
        place = {"x": 0, "y": top, "w": _COLUMNS, "h": 1}
        panels.append({"id": len(panels) + 1, "type": "row", "title": question, "gridPos": place, "collapsed": False})
        top += 1
        for begin in range(0, len(row), 3):
            for column, panel in enumerate(row[begin : begin + 3]):
                place = {"x": column * _COLUMNS // 3, "y": top, "w": _COLUMNS // 3, "h": _HEIGHT}
                panels.append({"id": len(panels) + 1, **_drawn(panel), "gridPos": place})
            top += _HEIGHT
    return {
        "uid": "redsync",
        "title": "redsync",
        "tags": ["redsync"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_source(), _choice("kind", "Kind", "kind"), _choice("group", "Group", "name_group")]},
        "panels": panels,
    }


def _drawn(panel: Panel) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + number), "datasource": _SOURCE, "expr": expression, "legendFormat": legend}
        for number, (expression, legend) in enumerate(panel.lines)
    ]
    defaults = {"unit": panel.unit, "min": 0, "custom": {"lineWidth": 1, "fillOpacity": 8, "showPoints": "never"}}
    return {
        "type": "timeseries",
        "title": panel.title,
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": targets,
    }


def _source() -> dict[str, Any]:
    return {"name": "source", "label": "Source", "type": "datasource", "query": "prometheus"}


def _choice(name: str, title: str, label: str) -> dict[str, Any]:
    # Both the client's and the exporter's metrics have the label; a deployment may have only one of the two.
    return {
        "name": name,
        "label": title,
        "type": "query",
        "datasource": _SOURCE,
        "query": f'label_values({{__name__=~"redsync_(hold_active|acquire_attempts_total|kept_holds)"}}, {label})',
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def main() -> int:
    """Write or check the file; return the exit status."""
    text = json.dumps(dashboard(), indent=1) + "\n"
    if "--check" not in sys.argv[1:]:
        FILE.write_text(text)
    elif not FILE.exists() or FILE.read_text() != text:
        print(f"{FILE.name} is out of date: run `make docs`")  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
