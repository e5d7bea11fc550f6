"""What a client needs to know of its process: who it is, and when it ends."""

import os
import socket
import subprocess
import sys
import textwrap
import time

import pytest

from redsync._drivers.process import describe_process


def test_process_is_described_for_people_on_other_machines():
    began = time.time()
    record = describe_process()
    assert (record.host, record.pid) == (socket.gethostname(), os.getpid())
    assert began <= record.since <= time.time()


@pytest.mark.parametrize(
    ("argv", "program"),
    [
        (["/srv/app/worker.py", "--fast"], "worker.py"),
        (["worker"], "worker"),
        (["/usr/lib/python3/site-packages/celery/__main__.py"], "celery"),  # python -m celery
        (["-c"], "-c"),
        (["-m"], "-m"),
    ],
)
def test_program_is_what_was_started_without_its_arguments(monkeypatch, argv, program):
    monkeypatch.setattr(sys, "argv", argv)
    assert describe_process().program == program


@pytest.mark.parametrize("argv", [[], [""], None])
def test_program_without_a_name_is_its_interpreter(monkeypatch, argv):
    """An interactive session, or Python within another program."""
    monkeypatch.setattr(sys, "argv", argv)
    assert describe_process().program == os.path.basename(sys.executable)


def run(program):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


PREAMBLE = """
import os
import sys
from redsync._drivers.process import at_exit

def bye():
    print("bye", flush=True)
"""


def test_function_is_called_once_at_exit_however_often_it_was_announced():
    assert run(PREAMBLE + "at_exit(bye)\nat_exit(bye)\nprint('end', flush=True)") == ["end", "bye"]


def test_function_is_called_at_the_end_of_a_child_of_multiprocessing_that_announced_it():
    program = """
    import multiprocessing

    def work():
        at_exit(bye)
        print("child", flush=True)

    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    child.join()
    print("end", flush=True)
    """
    assert run(PREAMBLE + textwrap.dedent(program)) == ["child", "bye", "end"]


def test_function_is_not_called_in_a_child_of_multiprocessing_that_did_not_announce_it():
    """What its parent had to say at its end is none of the child's business."""
    program = """
    import multiprocessing

    at_exit(bye)
    child = multiprocessing.get_context("fork").Process(target=print, args=("child",), kwargs={"flush": True})
    child.start()
    child.join()
    print("end", flush=True)
    """
    assert run(PREAMBLE + textwrap.dedent(program)) == ["child", "end", "bye"]


def test_function_is_called_before_what_was_announced_earlier():
    """A client is closed while what it was made with is still there."""
    program = """
    import atexit

    atexit.register(print, "earlier", flush=True)
    at_exit(bye)
    """
    assert run(PREAMBLE + textwrap.dedent(program)) == ["bye", "earlier"]
