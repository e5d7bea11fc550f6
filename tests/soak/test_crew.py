"""Client processes end with whoever started them, whatever state they are in, and nobody ends unnoticed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from redsync.cli.demo_ledger import now_ns
from tests.soak.crew import ROOT, Crew, RunFailedError
from tests.soak.journal import read
from tests.soak.verdicts import stalls_of
from tests.soak.worker import Order

NOBODY = [f"redis://127.0.0.1:{port}/0" for port in range(1, 6)]  # a client does without nodes, as long as it must

PARENT = """
import sys, time
from pathlib import Path
from tests.soak.test_crew import begin
from tests.soak.crew import Crew
crew = begin(Path(sys.argv[1]))
crew.stop(0)
print(crew.lives[0].process.pid, flush=True)
time.sleep(60)
"""

STANDSTILL = """
import os, re, signal, sys, time
from pathlib import Path
from tests.soak.journal import Journal
from tests.soak.vitals import Pulse
with Pulse(Journal(Path(sys.argv[1]))):
    time.sleep(0.1)
    if sys.argv[2] == "stop":
        print("ready", flush=True)
        sys.stdin.readline()
    else:
        began = time.process_time()
        while time.process_time() < began + 0.4:
            re.match("(a+)+$", "a" * 24 + "b")  # no other thread runs meanwhile
    time.sleep(0.1)
"""


def begin(directory, names=("lock:0",)):
    def make_order(client, threads_before, journal):
        return Order(NOBODY, list(names), str(directory), str(journal), threads_before, 1, "seed")

    crew = Crew(directory, make_order)
    crew.start(0)
    while not read(crew.lives[0].journal):  # it may also fail, as it does in a test
        if crew.lives[0].process.poll() is not None:
            break
    return crew


def is_alive(pid):
    """Whether that process is more than an entry that nobody has asked for yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_crew_leaves_nobody_behind_when_a_client_is_stopped(tmp_path):
    with begin(tmp_path) as crew:
        crew.stop(0)
    assert crew.lives[0].process.returncode == -signal.SIGKILL


@pytest.mark.skipif(sys.platform != "linux", reason="only there the kernel tells children of their parent's death")
def test_crew_leaves_nobody_behind_when_it_is_killed_itself(tmp_path, eventually):
    script = [sys.executable, "-c", PARENT, str(tmp_path)]
    with subprocess.Popen(script, cwd=ROOT, stdout=subprocess.PIPE, text=True) as parent:
        pid = int(parent.stdout.readline())
        assert is_alive(pid)
        parent.kill()
    eventually(lambda: not is_alive(pid))


def test_crew_tells_of_client_that_ended_by_itself(tmp_path, eventually):
    with begin(tmp_path, names=["nonsense:0"]) as crew:
        eventually(lambda: crew.lives[0].process.poll() is not None)
        with pytest.raises(RunFailedError, match="get_nonsense"):
            crew.check()
        with pytest.raises(RunFailedError, match="status 1"):
            crew.kill(0)


def test_crew_notes_when_it_kills(tmp_path):
    with begin(tmp_path) as crew:
        crew.kill(0)
        assert read(crew.lives[0].journal)[-1]["at"] < crew.lives[0].killed_at
        crew.start(0)
        assert [life.journal.name for life in crew.lives] == ["client-0.0.journal", "client-0.1.journal"]


def test_pulse_tells_of_standstill_when_process_is_stopped(tmp_path, eventually):
    path = tmp_path / "x.journal"
    script = [sys.executable, "-c", STANDSTILL, str(path), "stop"]
    with subprocess.Popen(script, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        os.kill(process.pid, signal.SIGSTOP)
        stopped_at = now_ns()
        eventually(lambda: now_ns() > stopped_at + 5e8)
        process.send_signal(signal.SIGCONT)
    assert max(stall.until - stall.since for stall in stalls_of(read(path))) >= 5e8


def test_pulse_tells_how_busy_the_process_was_itself(tmp_path):
    path = tmp_path / "x.journal"
    subprocess.run([sys.executable, "-c", STANDSTILL, str(path), "busy"], cwd=ROOT, check=True)
    assert max(line["cpu"] for line in read(path)) > 2e8
