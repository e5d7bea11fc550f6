"""The dashboard and the alert rules ask for what the exporters have, with such labels; its picture shows a real run."""

import json
import re
import sys
from pathlib import Path

import promql_parser
import pytest
import yaml

from redsync.cli.exporter import KEPT
from redsync.metrics.instruments import INSTRUMENTS
from redsync.metrics.prometheus import PrometheusMetrics

ROOT = Path(__file__).parents[2]
OPERATE = ROOT / "docs" / "operate"
sys.path.insert(0, str(ROOT / "tools"))

from dashboard import ROWS  # noqa: E402
from dashboard_picture import PICTURE, RUN, picture  # noqa: E402


def known():
    """Return the labels of each sample that a scrape can have."""
    samples = {name: set(labels) for name, (_, labels) in KEPT.items()}
    families = [family.name for family in PrometheusMetrics(registry=None).describe()]
    for name, instrument in zip(families, INSTRUMENTS, strict=True):
        labels = set(instrument.labels)
        match instrument.sort:
            case "counter":
                samples[f"{name}_total"] = labels
            case "histogram":
                samples |= {f"{name}_bucket": labels | {"le"}, f"{name}_count": labels, f"{name}_sum": labels}
            case "gauge":
                samples[name] = labels
    return samples


def dashboard():
    text = (OPERATE / "dashboard.json").read_text().replace("$__rate_interval", "5m")
    panels = [panel for panel in json.loads(text)["panels"] if panel["type"] != "row"]
    return [(panel["title"], target["expr"]) for panel in panels for target in panel["targets"]]


def rules():
    groups = yaml.safe_load((OPERATE / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


EXPRESSIONS = [*dashboard(), *((rule["alert"], rule["expr"]) for rule in rules())]


@pytest.mark.parametrize(("title", "expression"), EXPRESSIONS)
def test_expression_asks_for_what_exporters_have(title, expression):
    promql_parser.parse(expression)
    selected = re.findall(r"\b(redsync_\w+)(?:\{([^}]*)\})?", expression)
    assert selected
    labels = set.intersection(*(known()[name] for name, _ in selected))
    for name, matching in selected:
        assert set(re.findall(r"(\w+)\s*[=!]", matching)) <= known()[name], name
    for grouped in re.findall(r"\bby \(([^)]*)\)", expression):
        assert set(grouped.split(", ")) <= labels


def test_expression_with_an_unknown_metric_would_fail():
    with pytest.raises(KeyError):
        test_expression_asks_for_what_exporters_have("x", "sum(redsync_no_such_metric)")
    with pytest.raises(AssertionError):
        test_expression_asks_for_what_exporters_have("x", 'sum(redsync_hold_active{owner="me"})')
    with pytest.raises(ValueError, match="unclosed"):
        test_expression_asks_for_what_exporters_have("x", "sum(redsync_hold_active")


def test_each_metric_of_clients_is_on_the_dashboard_or_named_as_left_out():
    shown = {name for _, expression in dashboard() for name in re.findall(r"redsync_\w+", expression)}
    missing = {
        name for name in known() if not name.startswith("redsync_kept_") and not name.endswith(("_count", "_sum"))
    }
    assert missing - shown == {"redsync_hold_orphans_total"}


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_alert_says_what_is_wrong_with_labels_that_it_has(rule):
    assert rule.keys() - {"for"} == {"alert", "expr", "labels", "annotations"}
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    told = set(re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])))
    grouped = {label for labels in re.findall(r"\bby \(([^)]*)\)", rule["expr"]) for label in labels.split(", ")}
    assert told <= grouped
    runbooks = (OPERATE / "runbooks.md").read_text()
    for named in re.findall(r"runbook: ([^.]*)\.", rule["annotations"]["description"]):
        assert f"## {named[0].upper()}{named[1:]}" in runbooks


def test_picture_shows_the_recorded_run_in_all_panels():
    kept = json.loads(RUN.read_text())
    panels = [panel for row in ROWS.values() for panel in row]
    # Record again if an expression was changed. Rare events, such as split votes, may be missing in a run.
    unknown = {expression for panel in panels for expression, _ in panel.lines} - kept["lines"].keys()
    assert [expression for expression in unknown if "splits" not in expression] == []
    assert all(len(line) == len(kept["seconds"]) for lines in kept["lines"].values() for line in lines.values())
    text = picture(kept).svg()
    assert PICTURE.read_text() == text
    assert all(panel.title in text for panel in panels)
