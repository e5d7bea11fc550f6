"""`bench peers`: measurements of other libraries, including missing and stuck ones."""

import io
import json
import subprocess
import sys

import pytest

from bench import contender, peers
from bench.peer_locks import PEERS, Peer, command, environment, is_installed

OWN = "redis-py Lock"


@pytest.fixture
def alone(monkeypatch):
    """Pretend that only redis-py's lock is installed."""
    for module in ("bench.peers", "bench.contended"):
        monkeypatch.setattr(f"{module}.is_installed", lambda name: name == OWN)


def test_redis_py_is_always_installed():
    assert is_installed(OWN)


def test_library_without_folder_and_distribution_is_not_installed(monkeypatch, tmp_path):
    monkeypatch.setattr("bench.peer_locks.FOLDER", tmp_path)
    assert not is_installed("redlock-ng")
    assert not is_installed("node-redlock")
    (tmp_path / "redlock-ng").mkdir()
    assert is_installed("redlock-ng")


def test_folders_are_not_shared():
    assert len({environment(name)["PYTHONPATH"] for name in PEERS}) == len(PEERS)


def test_make_peers_learns_what_pip_installs():
    output = subprocess.run([sys.executable, "-m", "bench.peer_locks"], capture_output=True, text=True, check=True)
    lines = [line.rsplit(" ", 1) for line in output.stdout.splitlines()]
    assert lines == [[name, peer.requirement] for name, peer in PEERS.items() if "==" in peer.requirement]


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
    assert figures["redsync, 1 node down: granted"] == figures["redsync, 1 node hung: granted"] == 100
    assert "pottery" not in " ".join(figures)
    assert "left out, not installed (`make peers` installs them): python-redis-lock, redlock-py" in (
        capsys.readouterr().err
    )


class Clock:
    """A stand-in for the module `time`."""

    now = 0.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


def test_wait_is_counted_from_the_first_try(monkeypatch, capsys):
    clock, answers = Clock(), iter([False, False, True, True, False, True, False, False])

    def take():
        clock.sleep(1.0)
        return next(answers)

    monkeypatch.setitem(PEERS, "reluctant", Peer("", lambda urls: lambda name: (take, lambda: None)))
    monkeypatch.setattr(contender, "time", clock)
    monkeypatch.setattr(sys, "argv", ["contender", "reluctant", "1", "[]", "7"])
    monkeypatch.setattr(sys, "stdin", io.StringIO("10.0 17.5\n"))
    contender.main()
    ready, turns = capsys.readouterr().out.splitlines()
    assert ready == "ready"
    answer = json.loads(turns)
    assert [(worker, round(waited, 3)) for worker, waited, _ in answer["turns"]] == [
        ("7.0", 3.0), ("7.0", 1.0), ("7.0", 2.0),
    ]  # fmt: skip
    assert [round(waited, 3) for waited in answer["unfinished"]] == [2.0]


def test_contenders_in_another_language_are_started_by_node():
    assert command("node-redlock", "contender", "1")[0] == "node"
    assert json.loads(json.dumps(command("redsync", "peer")))[1:] == ["-m", "bench.peer", "redsync"]
