"""Campaigns and the command line: their output, and that they name a failing seed."""

import pytest

from redsync.testing.simulator import campaign
from redsync.testing.simulator.__main__ import main
from redsync.testing.simulator.runs import simulate


def test_command_makes_many_runs_over_several_processes(capsys):
    assert main(["--seeds", "2", "--first", "1003", "--jobs", "2", "--kind", "fenced"]) == 0
    said = capsys.readouterr().out
    assert "2 runs in " in said
    assert "every promise was kept in every run" in said
    assert "faults: " in said


def test_command_prints_trace_of_one_seed(capsys):
    assert main(["--seed", "1003", "--kind", "fair"]) == 0
    assert capsys.readouterr().out == simulate(1003, kind="fair", traced=True).trace


@pytest.mark.parametrize(
    ("how", "options"),
    [({}, ""), ({"kind": "fair"}, " --kind fair"), ({"kind": "fair", "long": True}, " --kind fair --long")],
)
def test_summary_names_failing_seeds_and_how_to_replay_them(how, options):
    made = campaign.Campaign(range(2), **how)
    made.failures.append(campaign.Failure(41, "exclusion: two of them"))
    summary = made.summary()
    assert "1 runs FAILED, seeds 41" in summary
    assert summary.endswith(f"python -m redsync.testing.simulator --seed 41{options}")


def test_error_in_a_run_fails_its_seed(monkeypatch):
    def fail(seed, **how):
        raise RuntimeError("broken simulator") if seed == 3 else LookupError

    monkeypatch.setattr(campaign, "simulate", fail)
    _, failures = campaign._run_chunk(range(3, 4))
    assert [(failure.seed, "broken simulator" in failure.what) for failure in failures] == [(3, True)]
