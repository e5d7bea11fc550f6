"""The program of a client's process, as people on other machines see it."""

import sys

import pytest

from redsync._drivers.environment import describe_process


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
