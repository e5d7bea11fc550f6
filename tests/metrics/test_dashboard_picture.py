"""The picture of the dashboard: it evaluates what the panels ask for as Prometheus would, and shows all panels."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from dashboard import ROWS  # noqa: E402
from dashboard_picture import PICTURE, RUN, evaluate, picture  # noqa: E402


def labels(**pairs):
    return tuple(sorted(pairs.items()))


def scrapes(*looks):
    """Return scrapes, one every two seconds."""
    return [(2.0 * number, {"redsync_x": look, "redsync_x_bucket": look}) for number, look in enumerate(looks)]


def test_rate_is_the_growth_in_the_last_ten_seconds():
    a, b = labels(group="a"), labels(group="b")
    looks = [{a: 5.0 * number, **({b: 7.0} if number > 6 else {})} for number in range(8)]
    rates = evaluate("sum by (group) (rate(redsync_x{}[$__rate_interval]))", scrapes(*looks))
    assert rates == {a: 2.5}, "a series that has just begun has no rate"
    assert evaluate("sum by (group) (rate(redsync_x{}[$__rate_interval]))", scrapes(looks[0])) == {}


@pytest.mark.parametrize(("part", "expected"), [(0.25, 0.5), (0.5, 1.0), (0.75, 1.5), (0.9, 2.0), (0.99, 2.0)])
def test_quantile_is_linear_within_its_bucket(part, expected):
    grown = {"1.0": 2.0, "2.0": 3.6, "+Inf": 4.0}
    before, after = ({labels(le=bound): part * n for bound, n in grown.items()} for part in (0, 1))
    expression = f"histogram_quantile({part}, sum by (le) (rate(redsync_x_bucket{{}}[$__rate_interval])))"
    assert evaluate(expression, scrapes(before, after)) == {(): pytest.approx(expected, abs=0.13)}


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
