"""`redsync lock` when its lock is lost: the command ends before another owner can have the lock."""

import sys
import time
from pathlib import Path

import pytest

from tests.cli.command_process import RELUCTANT
from tests.support.sweeps import swept

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for processes in /proc")

LEASE = 2.0
DRIFT = LEASE * 0.01 + 0.002

BEAT = """
import os, signal, sys, time

def note(number, frame):
    print("asked", time.monotonic(), flush=True)

signal.signal(signal.SIGTERM, note)
print("ready", flush=True)
with open(sys.argv[1], "wb") as file:
    while True:
        # One call, always of the same length: even after a kill, the file has a whole number.
        os.pwrite(file.fileno(), b"%020.6f" % time.monotonic(), 0)
        time.sleep(0.005)
"""
"""Writes the time to a file again and again; SIGTERM does not end it."""


@pytest.fixture
def beats(tmp_path):
    return tmp_path / "beats"


def last_beat(path):
    return float(path.read_text() or "0")


@pytest.mark.parametrize("fault", ["pause", *swept("kill")])
def test_command_is_ended_before_validity_ends_when_nodes_fail(lock_command, nodes, beats, fault):
    process = lock_command("x", "--lease", str(LEASE), "--", sys.executable, "-c", BEAT, str(beats))
    process.read_until("ready\n")
    for i in range(3):
        getattr(nodes, fault)(i)
    # No renewal sent after this can have had a quorum.
    failed = time.monotonic()
    out, err = process.finish()
    assert process.returncode == 124
    assert "redsync lock: ended the command: the lock could not be renewed and was about to be lost\n" in err
    assert last_beat(beats) < failed + LEASE - DRIFT
    asked = float(out.split()[1])
    assert asked < last_beat(beats) - 0.1


def test_command_continues_after_a_loss_with_on_lost_ignore(lock_command, nodes):
    process = lock_command("x", "--lease", "0.5", "--on-lost", "ignore", "-c", "echo ready; sleep 1.1; exit 3")
    process.read_until("ready\n")
    for i in range(3):
        nodes.pause(i)
    _, err = process.finish()
    assert process.returncode == 3
    assert "was lost" in err


@pytest.mark.parametrize("program", [RELUCTANT, *swept("echo ready; sleep 60")])
def test_command_is_ended_when_the_lock_is_force_released(lock_command, client, program):
    process = lock_command("x", "--lease", "1.5", "-k", "0.3", "-c", program)
    process.read_until("ready\n")
    assert client.get_fenced_lock("x").force_release()
    _, err = process.finish()
    assert process.returncode == 124
    assert "redsync lock: ended the command: the lock was lost\n" in err


def test_loss_found_at_the_end_is_reported(lock_command, client):
    process = lock_command("x", "-c", "echo ready; read line", stdin=-1)
    process.read_until("ready\n")
    assert client.get_fenced_lock("x").force_release()
    process.stdin.write("\n")
    _, err = process.finish()
    assert process.returncode == 124
    assert "was lost" in err


@pytest.mark.parametrize("kind", [["--permits", "2"], *swept(["-s"], ["--fair"])])
def test_every_kind_of_lock_is_watched(lock_command, nodes, kind):
    process = lock_command("x", *kind, "--lease", "1.5", "-c", "echo ready; sleep 60")
    process.read_until("ready\n")
    for i in range(3):
        nodes.pause(i)
    process.finish()
    assert process.returncode == 124
