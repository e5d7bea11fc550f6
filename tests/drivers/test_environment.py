"""A client's process: its description, and its end."""

import os
import socket
import sys
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
