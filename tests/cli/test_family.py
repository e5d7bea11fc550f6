"""All descendants of a process are found, and a control group ends even those that can't be signalled."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from redsync.cli import family
from redsync.cli.cgroup import Cgroup
from tests.support.nursery import ROOT

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs subreapers and /proc")


STAT = " 0 -1 4194304 0 0 0 0 0 0 0 0 20 0 1 0 100 0 0"
"""The other fields of /proc/PID/stat, of a process with one thread."""


def run(program):
    """Run a program as a separate process, because adopting orphans can't be undone."""
    begin = "import os, signal, subprocess, sys, time\nfrom redsync.cli.family import Family\n"
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
family = Family()
family.adopt()
# A daemon that has left its parent, its group and its session, and its child that has left it.
subprocess.run(["sh", "-c", "(setsid sh -c 'sleep 60 & sleep 60' &)"], check=True)
while len(family.members()) < 3:
    time.sleep(0.01)
"""


def test_detached_descendants_are_found_and_ended():
    program = """
    print(len(family.send(signal.SIGKILL)))
    while not family.gone:
        list(family.reap())
    print(len(family.members()))
    """
    assert run(ORPHANS + textwrap.dedent(program)) == ["3", "0"]


def test_all_members_are_stopped():
    # "D": a shell waits for its stopped child, which has not executed its program yet (vfork).
    program = """
    family.halt()
    while not {process.state for process in family.members().values()} <= {"T", "D"}:
        time.sleep(0.01)
    family.send(signal.SIGKILL)
    """
    run(ORPHANS + textwrap.dedent(program))


def test_send_can_leave_out_processes():
    program = """
    first = set(list(family.members())[:1])
    print(len(family.send(0, but=first)), len(family.send(signal.SIGKILL)))
    """
    assert run(ORPHANS + textwrap.dedent(program)) == ["2", "3"]


def test_children_started_earlier_are_not_members():
    program = """
    before = subprocess.Popen(["sleep", "60"])
    family = Family()
    print(len(family.send(signal.SIGKILL)), before.poll())
    before.kill()
    """
    assert run(program) == ["0", "None"]


def test_process_group_is_ended_if_there_is_no_proc():
    program = """
    from pathlib import Path
    import redsync.cli.family
    redsync.cli.family._PROC = Path("/nowhere")
    family = Family()
    print(len(family.send(signal.SIGKILL)))  # no process yet, and not our own
    child = subprocess.Popen(["sh", "-c", "sleep 60 & wait"], process_group=0)
    family.lead(child.pid)
    family.send(signal.SIGKILL)
    while not family.gone:
        list(family.reap())
    """
    assert run(program) == ["0"]


def test_processes_of_another_namespace_are_not_members(monkeypatch, tmp_path):
    ours = family.Family()
    # /proc/self has another process id than ours.
    (tmp_path / "self").symlink_to("1")
    stranger = tmp_path / "77"
    stranger.mkdir()
    (stranger / "stat").write_text(f"77 (sleep) S {os.getpid()} 77 77{STAT}")
    monkeypatch.setattr(family, "_PROC", tmp_path)
    assert ours.members() == {}
    (tmp_path / "self").unlink()
    (tmp_path / "self").symlink_to(str(os.getpid()))
    assert set(ours.members()) == {77}


def test_name_of_a_program_may_look_like_the_other_fields(monkeypatch, tmp_path):
    ours = family.Family()
    (tmp_path / "self").symlink_to(str(os.getpid()))
    odd = tmp_path / "78"
    odd.mkdir()
    (odd / "stat").write_bytes(f"78 (a) R 1 1 1) S {os.getpid()} 78 78{STAT}".encode())
    monkeypatch.setattr(family, "_PROC", tmp_path)
    assert ours.members()[78].state == "S"


def test_zombie_with_another_running_thread_is_a_member(monkeypatch, tmp_path):
    ours = family.Family()
    (tmp_path / "self").symlink_to(str(os.getpid()))
    for number, threads in ((79, 1), (80, 2)):
        directory = tmp_path / str(number)
        directory.mkdir()
        (directory / "stat").write_text(
            f"{number} (python) Z {os.getpid()} 1 1{STAT}".replace("0 1 0", f"0 {threads} 0")
        )
    monkeypatch.setattr(family, "_PROC", tmp_path)
    assert set(ours.members()) == {80}


@pytest.fixture
def group():
    made = Cgroup()
    yield made
    made.remove()


def test_control_group_ends_all_members(group):
    if group._path is None:
        pytest.skip("no control group can be made here")
    child = subprocess.Popen(
        ["sh", "-c", f"echo $$ >{group._path}/cgroup.procs; setsid sleep 60 & echo ready; wait"], stdout=subprocess.PIPE
    )
    assert child.stdout.readline() == b"ready\n"
    group.kill()
    assert child.wait(30) == -signal.SIGKILL
    child.stdout.read()  # returns once all writers have ended
    child.stdout.close()
    path = group._path
    while path.exists():  # until the kernel has emptied it
        group.remove()


def test_control_group_is_removed_with_the_groups_left_in_it(group):
    if group._path is None:
        pytest.skip("no control group can be made here")
    # As of a nested `redsync lock` that was killed.
    (group._path / "redsync-inner").mkdir()
    group.remove()
    assert not group._path.exists()


def test_control_group_does_nothing_without_permission_to_create_it(monkeypatch):
    monkeypatch.setattr("redsync.cli.cgroup._our_group", lambda: Path("/nowhere"))
    made = Cgroup()
    made.join()
    made.kill()
    made.remove()
    assert made._path is None
