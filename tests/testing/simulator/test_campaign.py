"""Campaigns and the command line: what they print, and that a failing seed is named."""

import subprocess
import sys

from redsync.testing.simulator import campaign
from redsync.testing.simulator.__main__ import main
from redsync.testing.simulator.runs import simulate


def test_command_makes_many_runs_over_several_processes():
    command = [sys.executable, "-m", "redsync.testing.simulator", "--seeds", "6", "--jobs", "2"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "6 of 6 runs" in result.stdout
    assert "every promise was kept in every run" in result.stdout
    assert "faults: " in result.stdout


def test_command_prints_trace_of_one_seed(capsys):
    assert main(["--seed", "7"]) == 0
    assert capsys.readouterr().out == simulate(7, traced=True).trace


def test_summary_names_failing_seeds_and_how_to_replay_them():
    made = campaign.Campaign(range(2))
    made.failures.append(campaign.Failure(41, "exclusion: two of them"))
    assert "1 runs FAILED, seeds 41" in made.summary()
    assert "python -m redsync.testing.simulator --seed 41" in made.summary()


def test_command_makes_runs_of_another_kind_of_lock(capsys):
    assert main(["--seed", "7", "--kind", "fair"]) == 0
    assert capsys.readouterr().out == simulate(7, kind="fair", traced=True).trace
    assert main(["--seeds", "2", "--jobs", "1", "--kind", "spin"]) == 0


def test_summary_tells_how_to_replay_another_kind_of_lock():
    made = campaign.Campaign(range(2), kind="fair")
    made.failures.append(campaign.Failure(41, "fairness: b before a"))
    assert "python -m redsync.testing.simulator --seed 41 --kind fair" in made.summary()


def test_error_in_a_run_is_a_failure_of_its_seed(monkeypatch):
    def fail(seed, **how):
        raise RuntimeError("broken simulator") if seed == 3 else LookupError

    monkeypatch.setattr(campaign, "simulate", fail)
    chunk = campaign._run_chunk(range(3, 4))
    assert [(failure.seed, "broken simulator" in failure.what) for failure in chunk.failures] == [(3, True)]


def test_summary_tells_how_to_replay_a_long_run():
    made = campaign.Campaign(range(2), kind="fair", long=True)
    made.failures.append(campaign.Failure(41, "fairness: b before a"))
    assert "python -m redsync.testing.simulator --seed 41 --kind fair --long" in made.summary()
