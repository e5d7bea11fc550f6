"""Signals and `redsync lock`: while it waits, while the command runs, with a terminal, and when it is killed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command_process import RELUCTANT
from tests.support.sweeps import swept

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for processes in /proc")

TERMINATING = [signal.SIGTERM, *swept(signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)]


# While it waits


@pytest.mark.parametrize("kind", [["--fair"], *swept([], ["-x"])])
@pytest.mark.parametrize("number", TERMINATING)
def test_signal_while_waiting_leaves_no_place_in_the_queue(lock_command, client, eventually, kind, number):
    lock = client.get_read_write_lock("x").write_lock if "-x" in kind else client.get_fair_lock("x")
    with lock:
        process = lock_command("x", *kind, "--", "echo", "ran")
        eventually(lambda: client.inspect("x").waiters)
        process.send_signal(number)
        status, out, err = process.finish()
        assert (status, out) == (128 + number, "")
        assert err.endswith(f"redsync lock: ended by signal {number.value} before the command started\n")
        eventually(lambda: not client.inspect("x").waiters)
    assert lock.acquire(False)
    lock.release()


def test_second_interrupt_while_waiting_does_not_disturb_the_first(lock_command, client, eventually):
    with client.get_fenced_lock("x"):
        process = lock_command("x", "--", "true")
        eventually(lambda: client.inspect("x").waiters)
        for _ in range(5):
            process.send_signal(signal.SIGINT)
        status, _, err = process.finish()
        # A signal after Python has removed its handlers, at exit, ends us by its default action.
        assert status in {130, -signal.SIGINT}
        assert "Traceback" not in err
        eventually(lambda: not client.inspect("x").waiters)


# While the command runs


@pytest.mark.parametrize("number", TERMINATING)
def test_signal_while_running_reaches_the_command_and_all_it_started(lock_command, client, number):
    process = lock_command("x", "-c", "cat; echo never", stdin=subprocess.PIPE)
    process.stdin.write("ready\n")
    process.stdin.flush()
    process.read_until("ready\n")
    process.send_signal(number)
    process.wait(20)  # its input is still open
    assert process.finish() == (128 + number, "", "")
    assert not client.get_fenced_lock("x").locked()


def test_command_that_handles_a_signal_decides_its_status(running):
    process = running("x", "-c", "trap 'echo tidy; exit 5' TERM; echo ready; while :; do sleep 0.02; done")
    process.terminate()
    status, out, _ = process.finish()
    assert (status, out) == (5, "tidy\n")


def test_signals_that_the_command_ignores_do_not_end_it(running, client):
    process = running("x", "-c", RELUCTANT)
    for _ in range(3):
        process.terminate()
    assert not client.get_fenced_lock("x").acquire(timeout=0.3)
    os.killpg(process.command_group(), signal.SIGKILL)
    assert process.finish().status == 137


def test_ignored_hangup_stays_ignored(lock_command):
    ignore = [
        sys.executable,
        "-c",
        "import os,signal,sys\nsignal.signal(1, signal.SIG_IGN)\nos.execv(*sys.argv[1:2], sys.argv[1:])",
    ]
    process = lock_command("x", "-c", "kill -HUP $$; echo survived", before=ignore)
    assert process.finish().out == "survived\n"


@pytest.mark.parametrize("program", [RELUCTANT, "echo ready; kill -STOP $$"], ids=["ignores TERM", "stopped"])
def test_max_hold_kills_a_command_that_does_not_end(running, client, program):
    process = running("x", "--max-hold", "0.3", "-k", "0.3", "-c", program)
    assert process.finish().status == 124
    assert not client.get_fenced_lock("x").locked()


# With a terminal


@pytest.fixture
def on_terminal(lock_command):
    """Start `redsync lock` in the foreground of a terminal."""
    return lambda *arguments, **more: lock_command(*arguments, terminal=True, **more)


def test_interrupt_key_while_waiting_ends_redsync_by_sigint(on_terminal, client, eventually):
    with client.get_fenced_lock("x"):
        process = on_terminal("x", "--", "true")
        eventually(lambda: client.inspect("x").waiters)
        process.type("\x03")
        assert process.wait(20) == -signal.SIGINT
        eventually(lambda: not client.inspect("x").waiters)


def test_interrupt_key_ends_the_loop_of_a_shell(on_terminal, client):
    process = on_terminal(
        "x", "-c", "echo ready; exec sleep 60", before=["/bin/sh", "-c", '"$@"; echo status $?', "sh"]
    )
    process.read_until("ready")
    process.type("\x03")
    process.end()
    assert not client.get_fenced_lock("x").locked()
    assert b"status" not in process._seen


def test_stop_key_gives_the_terminal_to_the_shell_and_fg_returns_it(on_terminal):
    shell = ["/bin/sh", "-c", 'set -m; "$@"; echo stopped; fg; echo over', "sh"]
    process = on_terminal("x", "-c", "echo ready; read line; echo got $line", before=shell)
    process.read_until("ready")
    process.type("\x1a")
    process.read_until("stopped")
    process.type("words\n")
    process.read_until("got words")
    process.read_until("over")
    assert process.wait(20) == 0
