"""`bench peers`: measurements of other libraries, including missing and stuck ones."""

import pytest

from bench import peers
from bench.peer_locks import PEERS, is_installed

OWN = "redis-py Lock"


@pytest.fixture
def alone(monkeypatch):
    """Pretend that only redis-py's lock is installed."""
    for module in ("bench.peers", "bench.contended"):
        monkeypatch.setattr(f"{module}.is_installed", lambda name: name == OWN)


@pytest.mark.parametrize("name", ["redsync", "redsync asyncio", OWN, *sorted(PEERS.keys() - {OWN})])
def test_pairs_of_each_are_timed(name, redsync_nodes):
    if name in PEERS and not is_installed(name):
        pytest.skip("not installed: make peers")
    side = peers.Side(name, redsync_nodes.urls)
    try:
        answer = side.measure(pairs=20)
        assert answer["tried"] == 20
        # A library with a short timeout may fail some while the machine is paused.
        assert 0 < answer["granted"] <= 20
        assert 0 < answer["p50"] <= answer["p99"]
        assert answer["cpu"] > 0
        assert side.measure(seconds=0.1)["tried"] > 0
    finally:
        side.close()


def test_stuck_process_counts_as_granted_no_locks(monkeypatch, redsync_nodes):
    monkeypatch.setattr(peers, "_PATIENCE", 0.3)
    side = peers.Side(OWN, redsync_nodes.urls)
    try:
        redsync_nodes.pause(0)
        assert [side.measure(pairs=1)["granted"] for _ in range(2)] == [0, 0]
        assert side.is_stuck
    finally:
        redsync_nodes.resume(0)
        side.close()


@pytest.mark.sweep
@pytest.mark.usefixtures("alone")
def test_missing_libraries_are_listed_and_left_out(capsys):
    figures = {figure.what: figure.ours for figure in peers.run(quick=True)}
    assert f"{OWN}, 1 server: p50" in figures
    # Not all of them on a busy machine; `tests/faults` tests that such nodes cost nothing.
    assert min(figures[f"redsync, 1 node {trouble}: granted"] for trouble in ("down", "hung")) > 0
    assert "pottery" not in " ".join(figures)
    assert "left out, not installed (`make peers` installs them): python-redis-lock, redlock-py" in (
        capsys.readouterr().err
    )
