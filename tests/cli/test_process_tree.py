"""All descendants of a process are found, and signals reach them."""

import os
import subprocess
import sys
import textwrap

import pytest

from redsync.cli import process_tree
from tests.support.nursery import ROOT

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs subreapers and /proc")


STAT = " 0 -1 4194304 0 0 0 0 0 0 0 0 20 0 1 0 100 0 0"
"""The other fields of /proc/PID/stat, of a process with one thread."""


def run(program):
    """Run a program as a separate process, because adopting orphans can't be undone."""
    begin = "import os, signal, subprocess, sys, time\nfrom redsync.cli.process_tree import ProcessTree\n"
    done = subprocess.run(
        [sys.executable, "-c", begin + textwrap.dedent(program)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


ORPHANS = r"""
tree = ProcessTree()
tree.adopt()
# A daemon that has left its parent, its group and its session, and its child that has left it.
subprocess.run(["sh", "-c", "(setsid sh -c 'sleep 60 & sleep 60' &)"], check=True)
while len(tree.members()) < 3:
    time.sleep(0.01)
"""


def test_detached_descendants_are_found_and_ended():
    program = """
    print(len(tree.send(signal.SIGKILL)))
    while not tree.gone:
        list(tree.reap())
    print(len(tree.members()))
    """
    assert run(ORPHANS + textwrap.dedent(program)) == ["3", "0"]


def test_process_group_is_ended_if_there_is_no_proc():
    program = """
    from pathlib import Path
    import redsync.cli.process_tree
    redsync.cli.process_tree._PROC = Path("/nowhere")
    tree = ProcessTree()
    print(len(tree.send(signal.SIGKILL)))  # no process yet, and not our own
    child = subprocess.Popen(["sh", "-c", "sleep 60 & wait"], process_group=0)
    tree.lead(child.pid, 0)
    tree.send(signal.SIGKILL)
    while not tree.gone:
        list(tree.reap())
    """
    assert run(program) == ["0"]


def test_processes_of_another_namespace_are_not_members(monkeypatch, tmp_path):
    ours = process_tree.ProcessTree()
    # /proc/self has another process id than ours.
    (tmp_path / "self").symlink_to("1")
    stranger = tmp_path / "77"
    stranger.mkdir()
    (stranger / "stat").write_text(f"77 (sleep) S {os.getpid()} 77 77{STAT}")
    monkeypatch.setattr(process_tree, "_PROC", tmp_path)
    assert ours.members() == {}
    (tmp_path / "self").unlink()
    (tmp_path / "self").symlink_to(str(os.getpid()))
    assert set(ours.members()) == {77}


def test_name_of_a_program_may_look_like_the_other_fields(monkeypatch, tmp_path):
    ours = process_tree.ProcessTree()
    (tmp_path / "self").symlink_to(str(os.getpid()))
    odd = tmp_path / "78"
    odd.mkdir()
    (odd / "stat").write_bytes(f"78 (a) R 1 1 1) S {os.getpid()} 78 78{STAT}".encode())
    monkeypatch.setattr(process_tree, "_PROC", tmp_path)
    assert ours.members()[78].state == "S"


def test_zombie_with_another_running_thread_is_a_member(monkeypatch, tmp_path):
    ours = process_tree.ProcessTree()
    (tmp_path / "self").symlink_to(str(os.getpid()))
    for number, threads in ((79, 1), (80, 2)):
        directory = tmp_path / str(number)
        directory.mkdir()
        (directory / "stat").write_text(
            f"{number} (python) Z {os.getpid()} 1 1{STAT}".replace("0 1 0", f"0 {threads} 0")
        )
    monkeypatch.setattr(process_tree, "_PROC", tmp_path)
    assert set(ours.members()) == {80}
