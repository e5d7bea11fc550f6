"""`redsync lock` when its lock is lost: the command ends before another owner can have the lock."""

from pathlib import Path

import pytest

from tests.cli.command_process import RELUCTANT
from tests.support.sweeps import swept

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for processes in /proc")


@pytest.mark.parametrize("kind", [["--permits", "2"], *swept([], ["-s"], ["--fair"])])
@pytest.mark.parametrize("fault", ["pause", *swept("kill")])
def test_command_is_ended_when_nodes_fail_whatever_the_kind_of_lock(lock_command, nodes, kind, fault):
    """`test_lock_matrix.py` shows that it ends before another owner can have the lock."""
    process = lock_command("x", *kind, "--lease", "1.5", "-c", RELUCTANT)
    process.read_until("ready\n")
    for i in range(3):
        getattr(nodes, fault)(i)
    _, err = process.finish()
    assert process.returncode == 124
    assert "redsync lock: ended the command: the lock could not be renewed and was about to be lost\n" in err


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
