"""The processes that the command of `redsync lock` leaves, stops of the command, and its end without its shim."""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from tests.cli.test_lock_matrix import find
from tests.support.sweeps import swept

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for processes in /proc")

LEFT = "redsync lock: ended processes that the command left running\n"


# Processes left running


@pytest.mark.parametrize(
    "left", ["(setsid sleep 60 &);", *swept("sleep 60 &", "setsid sleep 60 &", "nohup sleep 60 &")]
)
def test_processes_that_the_command_leaves_are_ended(run_lock, left):
    assert run_lock("x", "-k", "0.2", "-c", f"{left} exit 3") == (3, "", LEFT)


def test_command_that_leaves_no_process_is_not_said_to_have_left_one(run_lock):
    assert run_lock("x", "-k", "0", "-c", "exit 3") == (3, "", "")


def test_left_process_has_time_to_end_while_the_lock_is_held(running, client):
    process = running("x", "-c", "exec 3<&0; (read line <&3; echo written) & echo ready; exit 3", stdin=subprocess.PIPE)
    assert not client.get_fenced_lock("x").acquire(timeout=0.3)
    process.stdin.write("\n")
    assert process.finish() == (3, "written\n", "")


def test_terminated_shell_does_not_release_the_lock_before_its_job_ends(running, client):
    job = "trap 'read line; exit' TERM; echo ready; while :; do sleep 0.02; done"
    process = running("x", "-c", f'sh -c "{job}" <&0; true', stdin=subprocess.PIPE)
    process.terminate()
    assert not client.get_fenced_lock("x").acquire(timeout=0.3)
    process.stdin.write("\n")
    assert process.finish().status == 143


@pytest.fixture
def open_directory():
    """A directory that other users can read: each run of pytest closes the directories of all runs to them."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs root and setpriv")
def test_lock_is_kept_while_an_unkillable_process_writes(running, client, open_directory):
    """The process runs as another user, which we may not signal."""
    stop = open_directory / "stop"
    before = ["setpriv", "--bounding-set=-kill", "--inh-caps=-kill"]
    stubborn = f"trap '' TERM; echo ready; until [ -e {stop} ]; do sleep 0.02; done"
    other = ["setpriv", "--reuid", "65534", "--clear-groups", "sh", "-c", stubborn]
    process = running("x", "--lease", "2", "--max-hold", "0.3", "-k", "0.2", "--", *other, before=before)
    line = process.stderr.readline()
    assert line.startswith(
        "redsync lock: can't end these processes of the command; keeping the lock while renewals succeed: "
    )
    assert not client.get_fenced_lock("x").acquire(timeout=3)
    stop.touch()
    assert process.finish().status == 124
    assert client.get_fenced_lock("x").acquire(timeout=20)


# Without its shim, or with a stopped one


def test_command_is_ended_with_its_shim(running, client):
    process = running("x", "-c", "setsid sleep 60 & echo ready; sleep 60")
    os.kill(find(process)[1], signal.SIGKILL)
    status, _, err = process.finish()
    assert status == 125
    assert err == "redsync lock: ended the command: the process that enforces its deadline had ended\n"
    assert client.get_fenced_lock("x").acquire(False)


def test_stopped_shim_sees_the_end_of_the_command(running):
    process = running("x", "-c", "echo ready; read line; exit 3", stdin=subprocess.PIPE)
    os.kill(find(process)[1], signal.SIGSTOP)
    process.stdin.write("\n")
    assert process.finish().status == 3


def test_command_stopped_before_its_start_does_not_start_without_its_lock(lock_command, client, eventually, tmp_path):
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    program.chmod(0o700)
    # Searching this PATH takes seconds: the way to each directory is long.
    far = slow = tmp_path / "far"
    far.mkdir()
    for number in range(38):
        slow, before = tmp_path / f"{number}", slow
        slow.symlink_to("far/../" * 550 + before.name)
    path = ":".join([*[str(slow)] * 800, str(tmp_path)])
    process = lock_command("x", "--lease", "3", "--", "program", PATH=path)
    eventually(lambda: len(process.tree()) == 3)
    holder, shim = find(process)
    (child,) = process.tree() - {holder, shim}
    os.kill(child, signal.SIGSTOP)
    # The shim, which waits for the child, hears of a renewal too late.
    first = end_of(client)
    eventually(lambda: end_of(client) > first + 0.2)
    os.kill(holder, signal.SIGSTOP)
    eventually(lambda: child not in process.tree())
    os.kill(holder, signal.SIGCONT)
    assert process.finish().status == 124
    assert not (tmp_path / "ran").exists()


def end_of(client):
    return time.monotonic() + client.inspect("x").holders[0].remaining


def test_command_with_on_lost_ignore_outlives_its_shim(running, tmp_path, eventually):
    done = tmp_path / "done"
    command = f"echo ready; read line; touch {done}"
    process = running("x", "--on-lost", "ignore", "-c", command, stdin=subprocess.PIPE)
    process.kill()
    process.wait()
    process.stdin.write("\n")
    process.stdin.flush()
    eventually(done.exists)


# With a terminal


@pytest.fixture
def on_terminal(lock_command):
    """Start `redsync lock` by a shell with job control."""

    def on_terminal(shell, *arguments):
        before = ["/bin/sh", "-c", f"set -m; {shell}", "sh"]
        return lock_command("x", *arguments, terminal=True, before=before)

    return on_terminal


def test_command_in_a_pipeline_shares_its_group_and_gets_the_interrupt_key_once(on_terminal):
    count = "trap 'n=$((n+1)); echo interrupt $n; kill -HUP $$' INT; trap 'exit 6' HUP"
    process = on_terminal('"$@" | { trap "" INT; cat; }', "-c", f"{count}; echo ready; while :; do sleep 0.02; done")
    process.read_until("ready")
    groups = set()
    for number in process.tree():
        with contextlib.suppress(ProcessLookupError):  # a `sleep` that has ended
            groups.add(os.getpgid(number))
    assert len(groups - {os.getpgid(find(process)[1])}) == 2
    process.type("\x03")
    process.read_until("interrupt 1")
    process.end()
    assert b"interrupt 2" not in process._seen


def test_command_in_a_pipeline_reads_from_the_terminal(on_terminal):
    process = on_terminal('"$@" | cat; echo over', "-c", "echo ready; read line </dev/tty; echo got $line")
    process.read_until("ready")
    process.type("words\n")
    process.read_until("got words")
    process.read_until("over")
    assert process.end() == 0


def test_stop_key_works_during_min_hold(on_terminal, eventually):
    process = on_terminal('"$@"; echo stopped; kill %1; fg; echo over', "--min-hold", "60", "--", "echo", "ran")
    process.read_until("ran")
    # Only the holder and the shell are left: the command has ended.
    eventually(lambda: len(process.tree()) == 2)
    process.type("\x1a")
    process.read_until("stopped")
    process.read_until("over")
    assert process.end() == 0
