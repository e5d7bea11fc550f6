"""Fixtures for tests of commands: real processes, none of which may remain, and terminals."""

import os

import pytest

from tests.cli.command_process import Command, Terminal
from tests.support.nursery import ROOT, Nursery


@pytest.fixture(scope="session")
def nursery():
    nursery = Nursery()
    yield nursery
    nursery.end()


@pytest.fixture
def environment(nodes):
    """The environment of commands, with all nodes."""
    return make_environment(nodes.urls)


def make_environment(urls):
    # Neither settings of redsync, nor a terminal's size, which pytest-xdist sets for its workers.
    kept = {
        name: value
        for name, value in os.environ.items()
        if name == "REDSYNC_SERVER" or not (name.startswith("REDSYNC_") or name in ("COLUMNS", "LINES"))
    }
    ours = {"REDSYNC_URLS": ",".join(urls), "REDSYNC_RESTART_GUARD": "0", "TERM": "xterm"}
    return {**kept, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error", **ours}


@pytest.fixture
def start(environment, eventually, nursery):
    """Start a command; keywords in capitals go to its environment. None of its processes may remain after its end.

    A command gets a fresh interpreter if it needs something that the nursery can't provide.
    """
    started = []

    def start(*arguments, terminal=False, **more):
        variables = {name: more.pop(name) for name in list(more) if name.isupper()}
        terminal = Terminal() if terminal is True else terminal or None
        is_fresh = more.keys() & {"before", "pass_fds"} or any(name.startswith("PYTHON") for name in variables)
        more["nursery"] = None if is_fresh else nursery
        started.append(Command(arguments, {**environment, **variables}, terminal=terminal, **more))
        return started[-1]

    yield start
    try:
        for command in started:
            if command.returncode is not None:
                eventually(lambda command=command: not command.tree(), within=20)
    finally:
        for command in started:
            command.clean_up()


@pytest.fixture
def redsync(start):
    """Run a command to its end."""

    return lambda *arguments, **more: start(*arguments, **more).finish()


@pytest.fixture
def lock_command(start):
    """Start `redsync lock` on the nodes."""
    return lambda *arguments, **more: start("lock", *arguments, **more)


@pytest.fixture
def running(lock_command):
    """Start `redsync lock` with a command that says when it is ready; return it then."""

    def running(*arguments, **more):
        process = lock_command(*arguments, **more)
        process.read_until("ready\n")
        return process

    return running


@pytest.fixture
def run_lock(redsync):
    """Run `redsync lock` to its end."""
    return lambda *arguments, **more: redsync("lock", *arguments, **more)
