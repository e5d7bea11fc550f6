"""After any event, and any way to start the command: the command does not write once another owner has the lock.

`make test` runs each event once, `make test-all` each way and each event several times. REDSYNC_MATRIX=10 runs all
combinations ten times: in the first half the event comes at once, in the second after a random part of the lease.
"""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from redsync.testing import LocalNodes
from tests.cli.command_process import PATIENCE, command_line

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for processes in /proc")

LEASE = 1.5
OPTIONS = ["x", "--lease", str(LEASE), "-k", "0.3"]

WRITER = """
import os, signal, sys, time

end = float("inf")

def tidy(*_):
    global end
    end = min(end, time.monotonic() + 0.4)

for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, tidy)
signal.signal(signal.SIGTSTP, signal.SIG_IGN)
file = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)
while time.monotonic() < end:
    # One call, always of the same length: even after a kill, the file has a whole number.
    os.pwrite(file, b"%020.6f" % time.monotonic(), 0)
    time.sleep(0.005)
"""
"""Writes the time to a file again and again, and for a while after SIGTERM; Ctrl-Z does not stop it."""

JOBS = 'set -m; "$@"; echo stopped; read line; fg'
PIPELINE = 'set -m; "$@" | cat; echo stopped; read line; fg'

WAYS = {
    "plain": ["--", "writer"],
    "shell": ["-c", "writer; true"],
    "timeout": ["-c", "timeout 3600 writer; true"],
    "setsid": ["--", "setsid", "-w", "writer"],
    "nohup": ["-c", "nohup writer & wait"],
    "nested": ["--", "nested", "writer"],
    "pipeline": ["-c", "writer; true"],
    "terminal": ["-c", "writer; true"],
    "process 1": ["-c", "setsid writer; true"],
}
EVENTS = ["loss", "SIGTERM", "SIGHUP", "SIGINT", "Ctrl-Z", "stopped", "killed", "shim killed"]

REPEATS = int(os.environ.get("REDSYNC_MATRIX", "0"))
CASES = [
    # Outside the sweep: each event once, each with another way.
    pytest.param((way, event, repeat), marks=() if i == -j % 3 + j // 3 * 3 and not repeat else pytest.mark.sweep)
    for i, way in enumerate(WAYS)
    for j, event in enumerate(EVENTS)
    for repeat in range(REPEATS or ((i + j) % 3 == 0))
]


class Writer:
    """A program that writes to a file."""

    def __init__(self, directory):
        self.path, self.beats = directory / "writer", directory / "beats"
        # Python's path may have spaces, so a shell starts it; to Python that line is one text.
        self.path.write_text(f'#!/bin/sh\n"exec" "{sys.executable}" "$0" "$@"\n{WRITER}')
        self.path.chmod(0o700)

    @property
    def last(self):
        """The time of its latest write; 0 if there is none."""
        return float(self.beats.read_text() or "0") if self.beats.exists() else 0.0


@pytest.fixture
def writer(tmp_path):
    return Writer(tmp_path)


@pytest.fixture(scope="module")
def elsewhere(server_path):
    with LocalNodes(1, server=server_path) as nodes:
        yield nodes


@pytest.fixture
def start_way(start, writer, elsewhere, eventually):
    """Start `redsync lock` with a writer in that way; return it, the holder and the shim once the writer writes."""

    def start_way(way):
        inner = ["env", f"REDSYNC_URLS={elsewhere.urls[0]}", sys.executable, "-m", "redsync.cli", "lock", "inner", "--"]
        words = []
        for word in WAYS[way]:
            if word == "nested":
                words += inner
            elif word == "writer":
                words += [str(writer.path), str(writer.beats)]
            else:
                words.append(word.replace("writer", f"{writer.path} {writer.beats}"))
        more = {}
        if way in {"pipeline", "terminal"}:
            shell = PIPELINE if way == "pipeline" else JOBS
            more = {"terminal": True, "before": ["/bin/sh", "-c", shell, "sh"]}
        elif way == "process 1":
            more = {"before": ["unshare", "--pid", "--fork", "--mount-proc"]}
        process = start("lock", *OPTIONS, *words, **more)
        eventually(lambda: writer.last)
        return process, *find(process)

    return start_way


def find(process):
    """Return the process that holds the lock, and its shim."""
    if process.is_alone:
        (shim,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        return process.pid, int(shim)
    ours = [sys.executable.encode(), b"-m", b"redsync.cli", b"lock", b"x"]
    found = {
        number: int(Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[1])
        for number in process.tree()
        if command_line(number)[:5] == ours
    }
    (holder,) = (number for number, parent in found.items() if parent not in found)
    (shim,) = (number for number, parent in found.items() if parent == holder)
    return holder, shim


def cause(event, process, holder, shim, nodes):
    if event == "loss":
        for i in range(3):
            nodes.pause(i)
    elif event == "Ctrl-Z" and process.terminal:
        process.type("\x1a")
    elif event == "Ctrl-Z":
        os.kill(holder, signal.SIGTSTP)
    elif event == "stopped":
        os.kill(holder, signal.SIGSTOP)
    elif event == "killed":
        os.kill(holder, signal.SIGKILL)
    elif event == "shim killed":
        os.kill(shim, signal.SIGKILL)
    else:
        os.kill(holder, getattr(signal, event))


def can_unshare():
    command = ["unshare", "--pid", "--fork", "--mount-proc", "true"]
    return shutil.which("unshare") is not None and not subprocess.call(command)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_command_does_not_write_once_another_owner_has_the_lock(start_way, nodes, client, writer, eventually, *, case):
    way, event, repeat = case
    if way == "process 1" and not can_unshare():
        pytest.skip("needs a process namespace")
    process, holder, shim = start_way(way)
    moment = random.Random(f"{way} {event} {repeat}").uniform(0, LEASE) if repeat >= REPEATS / 2 else 0.0
    time.sleep(moment)
    cause(event, process, holder, shim, nodes)
    if event == "loss":
        eventually(lambda: time.monotonic() - writer.last > LEASE)
        for i in range(3):
            nodes.resume(i)
    lock = client.get_fenced_lock("x")
    if not lock.acquire(timeout=LEASE * 2):
        # The lock is rightly held: the command continues.
        assert time.monotonic() - writer.last < LEASE
        os.kill(holder, signal.SIGTERM)
        assert lock.acquire(timeout=PATIENCE)
    acquired = time.monotonic()
    wake(process, holder)
    eventually(lambda: not process.tree() - {process.pid})
    lock.release()
    assert 0 < writer.last < acquired, f"it wrote {writer.last - acquired} s later, after {moment} s"


def wake(process, holder):
    """Continue what was stopped, to its end."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(holder, signal.SIGCONT)
    if process.terminal:
        process.type("\n")
