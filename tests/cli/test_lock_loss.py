"""`redsync lock` when its lock is lost: the command ends before another owner can have the lock."""

from pathlib import Path

import pytest

from tests.cli.command_process import RELUCTANT
from tests.support.sweeps import swept

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for processes in /proc")


@pytest.mark.parametrize("kind", [["--permits", "2"], *swept([], ["-s"], ["--fair"])])
@pytest.mark.parametrize("fault", ["pause", *swept("kill")])
def test_command_is_ended_when_nodes_fail_whatever_the_kind_of_lock(running, nodes, kind, fault):
    """`test_lock_matrix.py` shows that it ends before another owner can have the lock."""
    process = running("x", *kind, "--lease", "1.5", "-c", RELUCTANT)
    for i in range(3):
        getattr(nodes, fault)(i)
    status, _, err = process.finish()
    assert status == 124
    assert "redsync lock: ended the command: the lock could not be renewed and was about to be lost\n" in err


def test_command_continues_after_a_loss_with_on_lost_ignore(running, nodes):
    process = running("x", "--lease", "0.5", "--on-lost", "ignore", "-c", "echo ready; sleep 1.1; exit 3")
    for i in range(3):
        nodes.pause(i)
    status, _, err = process.finish()
    assert status == 3
    assert "was lost" in err


@pytest.mark.parametrize("program", [RELUCTANT, *swept("echo ready; sleep 60")])
def test_command_is_ended_when_the_lock_is_force_released(running, client, program):
    process = running("x", "--lease", "1.5", "-k", "0.3", "-c", program)
    assert client.get_fenced_lock("x").force_release()
    status, _, err = process.finish()
    assert status == 124
    assert "redsync lock: ended the command: the lock was lost\n" in err


def test_loss_found_at_the_end_is_reported(running, client):
    process = running("x", "-c", "echo ready; read line", stdin=-1)
    assert client.get_fenced_lock("x").force_release()
    process.stdin.write("\n")
    status, _, err = process.finish()
    assert status == 124
    assert "was lost" in err
