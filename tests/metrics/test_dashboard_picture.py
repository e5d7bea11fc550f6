"""The picture of the dashboard: it shows the recorded run, in all panels."""

import json
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from dashboard import ROWS  # noqa: E402
from dashboard_picture import PICTURE, RUN, picture  # noqa: E402


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
