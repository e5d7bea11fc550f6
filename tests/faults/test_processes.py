"""Forked processes: each has its own identity, connections and holds.

`processes.py` has the code that runs in the processes. `test_orphans.py` of the drivers has those of multiprocessing,
and `tests/contrib` a server that forks its workers.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).with_name("processes.py")
# From Python 3.12 on, each fork in a process with threads warns. These tests are about our threads.
WARNINGS = ["-W", "error", "-W", "ignore:This process:DeprecationWarning"]


class Program:
    """A running program of `processes.py` and all its children, in their own session."""

    def __init__(self, name, settings):
        self.process = subprocess.Popen(
            [sys.executable, *WARNINGS, str(PROGRAMS), name, json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def hear(self):
        """Return the next line that it reports."""
        line = self.process.stdout.readline()
        if not line.startswith("{"):
            time.sleep(0.5)  # let a traceback become complete
            self.kill()
            raise AssertionError(line + self.process.stdout.read())
        return json.loads(line)

    def kill(self):
        """Kill all its processes; only before the first one is reaped, as the group may belong to others afterwards."""
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def go_on(self):
        print(file=self.process.stdin, flush=True)

    def hear_rest(self):
        """Return all further lines; when this returns, the program and its children have ended."""
        output, _ = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, output
        # On a machine that stalls for a moment, nodes are suspected.
        lines = [line for line in output.splitlines() if not re.match(r"node \S+ is (suspect|up)", line)]
        assert all(line.startswith("{") for line in lines), output
        return [json.loads(line) for line in lines]

    def end(self):
        with self.process:
            self.kill()


@pytest.fixture
def start(nodes):
    """Start programs; none of their processes outlives the test."""
    with contextlib.ExitStack() as stack:

        def start(name):
            program = Program(name, {"urls": nodes.urls})
            stack.callback(program.end)
            return program

        yield start


@pytest.fixture
def connections(admin):
    """Return a function that gives the ids of redsync's connections to each node: they all listen for wake-ups."""

    def ids(i):
        return {line.split()[0] for line in admin.ask(i, "CLIENT", "LIST").splitlines() if " sub=1 " in line}

    return lambda: [ids(i) for i in range(5)]


def test_children_of_a_fork_leave_holds_and_connections_of_their_parent_alone(start, admin, connections, eventually):
    program = start("family")
    parent = program.hear()
    before = connections()
    assert all(len(ids) == 1 for ids in before)
    program.go_on()
    told = [program.hear() for _ in range(5)]
    assert [facts["who"] for facts in told] == ["child", "grandchild", "child", "grandchild", "parent"]
    assert told[-1]["statuses"] == [0, 7]
    # All identities differ.
    assert len({facts["id"] for facts in [parent, *told[:4]]}) == 5
    eventually(lambda: connections() == before)
    assert sorted(admin.keys()) == [(i, f"redsync:parent's{which}") for i in range(5) for which in ("", " too")]
    program.go_on()
    program.hear_rest()
    assert admin.keys() == []


def test_child_that_closes_all_descriptors_as_daemons_do_may_use_the_client(start):
    assert start("daemon").hear_rest() == [{"states": ["up"] * 5}, {"status": 0}]
