"""`redsync demo` as a user runs it: its verdict and exit statuses, and that it leaves nothing behind."""

import contextlib
import os
import random
import re
import signal
import sys
from pathlib import Path

import pytest

from redsync.cli import demo, main
from redsync.cli.demo import Attempt, Report, attempt, lost_updates, show
from tests.support.sweeps import swept

linux = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for processes in /proc")


@pytest.fixture
def run_demo(start, tmp_path):
    """Start `redsync demo` with its own temporary directory."""
    return lambda *arguments, **variables: start("demo", *arguments, TMPDIR=str(tmp_path), **variables)


def lines_of(process, folder):
    """Return the command lines of its descendants, and of servers, which overwrite their marks, by their directory."""
    found = []
    tree = process.tree()
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or belongs to another user
            if int(path.name) in tree or str(folder) in os.readlink(path / "cwd"):
                found.append((path / "cmdline").read_bytes())
    return found


@linux
def test_demo_keeps_every_promise_and_leaves_nothing(run_demo, tmp_path):
    process = run_demo("--seconds", "4", "--seed", "7", PYTHONWARNINGS="error")
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
    assert out.splitlines()[-1].startswith("16 workers in 4 processes took 3 locks on 5 nodes")
    assert list(tmp_path.iterdir()) == []
    assert lines_of(process, tmp_path) == []


@linux
@pytest.mark.parametrize("after", ["first lock", *swept("servers", "hangs (SIGSTOP)")])
def test_interrupted_demo_leaves_nothing(run_demo, tmp_path, eventually, after):
    # Python closes a file or socket whose `with` an interruption prevents, for example one that it imports; and warns.
    # So it does of a worker that has just started, which ends with its standard input.
    warnings = "error,ignore:unclosed:ResourceWarning,ignore:subprocess:ResourceWarning"
    process = run_demo("--seconds", "8", PYTHONWARNINGS=warnings)
    process.read_until(after)
    # As a terminal does, to the whole foreground group.
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130, err
    assert err == "redsync demo: interrupted\n"
    assert list(tmp_path.iterdir()) == []
    eventually(lambda: lines_of(process, tmp_path) == [])


@linux
@pytest.mark.parametrize("number", [signal.SIGKILL, *swept(signal.SIGTERM, signal.SIGHUP)])
def test_killed_demo_leaves_nothing(run_demo, tmp_path, eventually, number):
    process = run_demo()
    process.read_until("first lock after")
    found = lines_of(process, tmp_path)
    assert sum(b"valkey-server" in line or b"redis-server" in line for line in found) == 5, found
    assert sum(b"redsync.cli.demo" in line for line in found) == 4, found
    process.send_signal(number)
    assert process.end() == -number
    eventually(lambda: lines_of(process, tmp_path) == [] and list(tmp_path.iterdir()) == [])


@pytest.fixture
def temporary(monkeypatch, tmp_path):
    """The only directory for temporary files."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path


def test_demo_of_a_broken_library_reports_overlaps_lost_updates_and_keys_that_stay(monkeypatch, capsys, temporary):
    """Its processes use different keys, and the last of them gives one lock not back."""
    code = """
import functools, os, sys
from redsync.cli import demo
demo.Client = functools.partial(demo.Client, prefix=f"redsync:{sys.argv[2]}:")
demo.work()
client = demo.Client(sys.argv[4:])  # kept: one that is dropped gives its locks back
assert sys.argv[2] != "3" or client.get_lock("lock:9").acquire()
os._exit(0)
"""
    monkeypatch.setattr(demo, "_WORKER", (sys.executable, "-c", code))
    assert main(["demo", "--seconds", "2"]) == 1
    out = capsys.readouterr().out
    for caption in ("overlaps", "lost updates", "zombie keys"):
        assert re.search(rf"^  {caption} +[1-9][0-9,]*$", out, re.MULTILINE), out
    assert re.search(r"overlap on lock [123]: Attempt\(worker=", out)
    assert re.search("lost updates on lock [123]: [1-9]", out)
    assert re.search("zombie key on node [1-5]: redsync:3:lock:9", out)
    assert "found a broken promise of redsync" in out
    assert list(temporary.iterdir()) == []


def test_error_in_one_worker_ends_its_process_and_the_demo(monkeypatch, capfd, temporary):
    code = "from redsync.cli import demo; demo.attempt = lambda *_: 1 // 0; demo.work()"
    monkeypatch.setattr(demo, "_WORKER", (sys.executable, "-c", code))
    assert main(["demo", "--seconds", "60"]) == 1
    err = capfd.readouterr().err
    assert "ZeroDivisionError" in err
    assert re.search(r"^redsync demo: worker process \d ended by itself with status 1$", err, re.MULTILINE)
    assert list(temporary.iterdir()) == []


def test_run_without_an_acquisition_proves_nothing(capsys):
    show(report(counters=[0]))
    out = capsys.readouterr().out
    assert "16 workers in 4 processes never got a lock, which proves nothing" in out
    assert re.search(r"^  wait p99, ms +0.0$", out, re.MULTILINE)


# The verdict

MS = 1_000_000


def held(worker, granted, ended, written=0, *, outcome="held", kept=True, **fields):
    """A hold of the first lock, in ms."""
    return Attempt(worker, 0, 0, outcome, granted * MS, ended * MS, kept, written, **fields)


def report(*attempts, counters=(2, 0)):
    return Report(attempts, counters, (), {0: None}, 2.0)


FIRST, SECOND = held(1, 10, 12, 1, reentries=2), held(2, 30, 32, 2, reentries=1)
FAILED = [Attempt(2, 0, 0, outcome) for outcome in ("timeout", "no quorum")]


def test_report_of_a_run_passes_if_all_is_in_order():
    it = report(SECOND, FIRST, *FAILED)
    assert not it.evidence
    assert it.holds == [[FIRST, SECOND], []]
    assert it.figures == {
        "acquisitions": "2",
        "re-entries": "3",
        "hand-overs per second": "0",
        "wait p50, ms": "20.0",
        "wait p99, ms": "49.4",
        "longest pause of a lock, ms": "18.0",
        "QuorumErrors seen": "1",
        "timeouts, lost holds": "1, 0",
        "faults injected": "1",
        "overlaps": "0",
        "lost updates": "0",
        "zombie keys": "0",
    }


LOST = held(1, 10, 10, outcome="lost", kept=False)


@pytest.mark.parametrize(
    ("attempts", "counters", "figures", "evidence"),
    [
        pytest.param([LOST, held(2, 12, 13, 1)], (1, 0), {"timeouts, lost holds": "0, 1"}, [], id="reported loss"),
        pytest.param(
            [held(1, 10, 10, kept=False)],
            (0, 0),
            {"timeouts, lost holds": "0, 0"},
            [f"loss of lock 1 not told: {held(1, 10, 10, kept=False)}"],
            id="unreported loss",
        ),
    ],
)
def test_report_of_a_loss_is_evidence_if_the_loss_was_not_told(attempts, counters, figures, evidence):
    it = report(*attempts, counters=counters)
    assert it.figures.items() >= figures.items()
    assert it.evidence == evidence


def test_late_write_of_a_lost_hold_explains_its_own_value_only():
    late = held(1, 1, 2, 1, kept=False)
    assert lost_updates([late, held(2, 3, 4, 1), held(3, 5, 6, 2)], 2) == 0  # before the others
    assert lost_updates([late, held(2, 3, 4, 1), held(3, 5, 6, 2)], 1) == 0  # after them
    assert lost_updates([late, held(2, 3, 4, 1), held(3, 5, 6, 2)], 0) == 2


# Workers


def test_worker_notes_a_lost_hold_and_does_not_count_under_it(redsync_nodes, tmp_path, monkeypatch):
    def lose(*_):
        for node in range(3):
            redsync_nodes.kill(node)
        monkeypatch.setattr(demo.time, "sleep", sleep)
        sleep(demo._LEASE + 0.5)

    sleep = demo.time.sleep
    monkeypatch.setattr(demo.time, "sleep", lose)
    monkeypatch.setattr(demo.random.Random, "randrange", lambda *_: 0)  # re-enters nothing
    with (tmp_path / "counters").open("w+b") as file, redsync_nodes.client(lease=demo._LEASE) as client:
        lost, refused = (attempt(client, file.fileno(), 3, random.Random(5)) for _ in range(2))
    assert (lost.outcome, lost.kept, lost.written) == ("lost", False, 0)
    assert lost.ended == lost.granted
    assert refused.outcome == "no quorum"
