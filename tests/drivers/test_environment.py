"""A client's process: its description, and its end."""

import os
import socket
import subprocess
import sys
import textwrap
import time

import pytest

from redsync._drivers.environment import describe_process


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
def test_program_is_the_started_file_without_its_arguments(monkeypatch, argv, program):
    monkeypatch.setattr(sys, "argv", argv)
    assert describe_process().program == program


def run(program):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


PREAMBLE = """
import os
import sys
from redsync._drivers.environment import at_exit

def bye():
    print("bye", flush=True)
"""


def test_function_is_called_once_at_exit_even_if_registered_twice():
    assert run(PREAMBLE + "at_exit(bye)\nat_exit(bye)\nprint('end', flush=True)") == ["end", "bye"]


def test_function_is_called_at_the_end_of_a_multiprocessing_child_that_registered_it():
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
    said = run(PREAMBLE + textwrap.dedent(program))
    assert (said[:2], said[-1]) == (["child", "bye"], "end"), "perhaps twice"


def test_function_is_not_called_in_a_multiprocessing_child_that_did_not_register_it():
    """The parent's exit functions do not concern the child."""
    program = """
    import multiprocessing

    at_exit(bye)
    child = multiprocessing.get_context("fork").Process(target=print, args=("child",), kwargs={"flush": True})
    child.start()
    child.join()
    print("end", flush=True)
    """
    assert run(PREAMBLE + textwrap.dedent(program)) == ["child", "end", "bye"]
