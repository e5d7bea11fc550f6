"""`redsync lock` when its lock is lost: the command ends before another owner can have the lock."""

import os
import select
import signal
from pathlib import Path

import pytest

from tests.cli.command_process import RELUCTANT
from tests.support.locks import flush
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


# Between a hand-over, whose claim is short, and the start of the command


@pytest.fixture
def hand_over(lock_command, client, proxies, eventually):
    """Let `redsync lock` wait behind proxies, change them, and hand the lock over; return the command."""

    def hand_over(**changes):
        urls = ",".join(proxy.url for proxy in proxies)
        with client.get_fair_lock("x"):
            process = lock_command("x", "--fair", "-v", "--", "echo", "ran", REDSYNC_URLS=urls)
            assert process.stderr.readline() == "redsync lock: waiting for 'x'\n"
            eventually(lambda: client.inspect("x").waiters)
            for proxy in proxies:
                for name, value in changes.items():
                    setattr(proxy, name, value)
        return process

    return hand_over


def runs_after_another_wait(process, proxies):
    """Return whether it waits again, and then runs its command; a busy machine may hand over too early or too late."""
    waits_again = bool(select.select([process.stderr], [], [], 2)[0])
    for proxy in proxies:
        proxy.heal()
    status, out, err = process.finish()
    assert (status, out) == (0, "ran\n"), err
    return waits_again and err.startswith("redsync lock: waiting for 'x': ")


def test_lock_whose_nodes_fail_before_its_extension_is_waited_for_again(hand_over, proxies, eventually):
    eventually(lambda: runs_after_another_wait(hand_over(drop_requests=True), proxies))


def test_lock_that_is_lost_before_its_extension_is_waited_for_again(hand_over, proxies, raw, eventually):
    def is_lost():
        process = hand_over(delay=0.05)
        flush(raw)
        return runs_after_another_wait(process, proxies)

    eventually(is_lost)


def test_lock_that_a_pause_has_left_short_is_extended(lock_command, proxies, raw, eventually):
    for proxy in proxies:
        proxy.delay = 0.05
    urls = ",".join(proxy.url for proxy in proxies)
    process = lock_command("x", "--lease", "3", "--", "echo", "ran", REDSYNC_URLS=urls)
    eventually(lambda: all(node.exists("redsync:x") for node in raw))
    os.kill(process.pid, signal.SIGSTOP)
    eventually(lambda: all(node.pttl("redsync:x") < 1400 for node in raw))
    os.kill(process.pid, signal.SIGCONT)
    assert process.finish() == (0, "ran\n", "")
