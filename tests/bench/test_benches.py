"""Benchmarks that ask nodes what they did: they measure every line of their table, in a quick run."""

import subprocess
import sys

import pytest

from bench import report, scripts, sizes


@pytest.mark.sweep
def test_scripts_measure_each_step_beside_a_floor():
    figures = scripts.run(quick=True)
    steps = {figure.what for figure in figures}
    assert {"lock: acquire", "lock: release", "lock: renew, per claim", "latch: count_down"} <= steps
    assert len(steps) == len(figures) == 18
    assert all(figure.ours > 0 and figure.floor is not None and figure.floor > 0 for figure in figures)


@pytest.mark.sweep
def test_sizes_measure_names_and_clients():
    figures = {figure.what: figure.ours for figure in sizes.run(quick=True)}
    assert figures["4 x 5 clients: connections per node and client"] == 1
    assert 50 < figures["2,000 names held: a node's memory per name"] < 1_000
    assert figures["2,000 names released: a node's memory per name"] < 50


def test_head_names_the_build_of_the_interpreter():
    machine = report.describe_machine()
    assert "profile-guided optimization and with" in machine["Python"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--compare", "no-such-ref"], "'no-such-ref' is not a commit"),
        (["--compare", "HEAD", "--write"], "--compare prints a table of its own"),
        (["--compare", "HEAD", "--rounds", "0"], "--rounds must be at least 1"),
        (["no-such-bench"], "no such bench: no-such-bench"),
    ],
)
def test_command_refuses_wrong_arguments(arguments, complaint):
    result = subprocess.run([sys.executable, "-m", "bench", *arguments], capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert complaint in result.stderr
