"""The classic stories of distributed locks: each goes as its file expects, and a dozen has its trace next to it.

The delays of the virtual network are drawn at random, in the order in which tasks send. That order is asyncio's, and
differs between Pythons by a step here or there. So each event of a trace may be a few milliseconds earlier or later.

When a trace changes for a good reason, `REDSYNC_UPDATE_TRACES=1 python -m pytest tests/scenarios` writes it again; the
diff then shows the changes.
"""

import os
from operator import attrgetter
from pathlib import Path

import pytest

from redsync._core.holds import Owner
from redsync.testing.simulator import SimulationError
from tests.simulation.scenario import Scenario

STORIES = sorted(Path(__file__).parent.glob("*.txt"))
UPDATE = bool(os.environ.get("REDSYNC_UPDATE_TRACES"))


def parts(trace):
    """Return the time of each event, and what happens."""
    lines = [line.split(None, 1) for line in trace.splitlines()]
    return [float(time) for time, _ in lines], [event for _, event in lines]


@pytest.mark.parametrize("path", STORIES, ids=attrgetter("stem"))
def test_story_goes_as_expected(path):
    trace = Scenario.read(path).run().trace.text()
    golden = path.with_suffix(".trace")
    if not golden.exists():
        return
    if UPDATE:
        golden.write_text(trace)
    times, events = parts(trace)
    golden_times, golden_events = parts(golden.read_text())
    changed = f"{golden.name} has changed: see the docstring of this module"
    assert events == golden_events, changed
    assert times == pytest.approx(golden_times, abs=0.05), changed


def test_story_of_the_late_release_fails_if_holds_have_no_identity_of_their_own(monkeypatch):
    monkeypatch.setattr(Owner, "claim", lambda owner, number, mode: owner.wire + b":1")
    with pytest.raises(SimulationError, match=r"exclusion: .* is held by a:1 on a .* and b:1 on b"):
        Scenario.read(Path(__file__).with_name("late_release.txt")).run()


def test_every_trace_has_its_story():
    traces = {path.stem for path in Path(__file__).parent.glob("*.trace")}
    assert traces < {path.stem for path in STORIES}
    assert len(traces) == 12
