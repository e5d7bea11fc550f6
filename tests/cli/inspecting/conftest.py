"""Fixtures for tests of the inspecting commands: three nodes, a client of them, and a fast way to run a command."""

import os

import pytest

from tests.cli.command_process import run_here
from tests.cli.conftest import make_environment


@pytest.fixture
def environment(nodes):
    """The environment of commands, with the first three nodes."""
    return make_environment(nodes.urls[:3])


@pytest.fixture
def three(make_client, all_nodes_met):
    """A client of the nodes that the commands query."""
    return make_client(n=3)


@pytest.fixture
def redsync(environment, monkeypatch, capsys):
    """Run a command to its end in this process; test_streams.py and the docs tests run each as a separate process."""

    def run(*arguments, **variables):
        with monkeypatch.context() as patch:
            for name in set(os.environ) - environment.keys():
                patch.delenv(name)
            for name, value in {**environment, **variables}.items():
                patch.setenv(name, value)
            return run_here(arguments, capsys)

    return run
