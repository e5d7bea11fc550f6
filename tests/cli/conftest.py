"""What tests of commands share: real processes, none of which may be left."""

import os
import signal
import sys

import pytest

from tests.cli.commands import Marked


@pytest.fixture
def lock_command(nodes, eventually):
    """Start `redsync lock` on the nodes; nothing of it may be left when it has ended."""
    started = []

    def start(*arguments, environment=None, before=(), **options):
        environment = {"REDSYNC_URLS": ",".join(nodes.urls), "REDSYNC_RESTART_GUARD": "0", **(environment or {})}
        command = [*before, sys.executable, "-m", "redsync.cli", "lock", *arguments]
        started.append(Marked(command, environment, **options))
        return started[-1]

    yield start
    try:
        for process in started:
            if process.returncode is not None:
                eventually(lambda process=process: not process.family())
    finally:
        for process in started:
            for number in process.family():
                os.kill(number, signal.SIGKILL)
            process.communicate()


@pytest.fixture
def run_lock(lock_command):
    """Run `redsync lock` to its end; returns the status, the output and what it said."""

    def run(*arguments, **options):
        process = lock_command(*arguments, **options)
        out, err = process.finish()
        return process.returncode, out, err

    return run
