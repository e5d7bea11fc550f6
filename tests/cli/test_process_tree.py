"""All descendants of a process are found, and signals reach them."""

import os
import subprocess
import sys

import pytest

from redsync.cli import process_tree
from tests.support.nursery import ROOT

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs subreapers and /proc")


STAT = " 0 -1 4194304 0 0 0 0 0 0 0 0 20 0 1 0 100 0 0"
"""The other fields of /proc/PID/stat, of a process with one thread."""


def test_process_group_is_ended_if_there_is_no_proc():
    program = """
import signal, subprocess
from pathlib import Path
from redsync.cli import process_tree
process_tree._PROC = Path("/nowhere")
tree = process_tree.ProcessTree()
assert not tree.send(signal.SIGKILL)  # no process yet, and not our own
child = subprocess.Popen(["sh", "-c", "sleep 60 & wait"], process_group=0)
tree.lead(child.pid, 0)
tree.send(signal.SIGKILL)
while not tree.gone:
    list(tree.reap())
"""
    # In a separate process, as a tree reaps all children.
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=60)


@pytest.fixture
def proc(monkeypatch, tmp_path):
    """Return a function that makes a child of ours in a /proc; each gets the number of its name."""
    monkeypatch.setattr(process_tree, "_PROC", tmp_path)
    (tmp_path / "self").symlink_to(str(os.getpid()))

    def add(number, program, state="S", threads=1):
        fields = STAT.replace("0 1 0", f"0 {threads} 0")
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "stat").write_text(f"{number} ({program}) {state} {os.getpid()} 1 1{fields}")
        return process_tree.ProcessTree().members()

    return add


def test_name_of_a_program_may_look_like_the_other_fields(proc):
    assert proc(78, "a) R 1 1 1") == {78: 1}


def test_zombie_is_a_member_if_another_of_its_threads_runs(proc):
    assert set(proc(79, "python", "Z")) == set()
    assert set(proc(80, "python", "Z", threads=2)) == {80}


def test_processes_of_another_namespace_are_not_members(proc, tmp_path):
    # /proc/self has another process id than ours.
    (tmp_path / "self").unlink()
    (tmp_path / "self").symlink_to("1")
    assert proc(77, "sleep") == {}
