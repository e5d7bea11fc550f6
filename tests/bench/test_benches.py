"""Benchmarks that use commands of the nodes measure every line of their table in a quick run."""

import sys

import pytest

from bench import metrics, scripts, sizes
from bench.__main__ import main

pytestmark = pytest.mark.timeout(600)  # they measure, so they do the same work on a busy machine


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
    assert figures["4 x 5 clients: connections per node and client"] == 2, "one for a caller, one for the maintenance"
    assert 50 < figures["2,000 names held: a node's memory per name"] < 1_000
    assert figures["2,000 names released: a node's memory per name"] < 50


@pytest.mark.sweep
def test_metrics_measure_each_observer_beside_none():
    figures = {figure.what: figure for figure in metrics.run(quick=True)}
    assert figures["3 nodes, without: CPU"].ours > 0
    for what in ("Prometheus", "OpenTelemetry"):
        assert figures[f"5 nodes, {what}: CPU more"].target == "<= 20 us"
        assert figures[f"5 nodes, {what}: a collection, CPU"].ours > 0


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--compare", "no-such-ref"], "'no-such-ref' is not a commit"),
        (["--compare", "HEAD", "--write"], "--compare prints its own table"),
        (["--compare", "HEAD", "--rounds", "0"], "--rounds must be at least 1"),
        (["no-such-bench"], "unknown benchmark: no-such-bench"),
    ],
)
def test_command_refuses_wrong_arguments(arguments, complaint, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["bench", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert complaint in capsys.readouterr().err
