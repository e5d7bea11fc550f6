"""The rolling restart of docs/operate/runbooks.md: one node after the other, with the waits that it names."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from redsync import Client
from redsync.testing import LocalNodes

ROOT = Path(__file__).parents[2]
LEASE = 2.0
FOR_WHOLE_SECONDS = 2.0
"""The page's extra time, as servers report their uptime in whole seconds."""


@pytest.fixture
def three(server_path):
    with LocalNodes(3, server=server_path) as nodes:
        yield nodes


def ask_doctor(nodes):
    """Return the status of `redsync doctor`, which the page asks in a loop."""
    environment = {**os.environ, "REDSYNC_URLS": ",".join(nodes.urls), "REDSYNC_RESTART_GUARD": str(LEASE)}
    command = [sys.executable, "-m", "redsync.cli", "doctor"]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=30, check=False).returncode


class Newcomer(threading.Thread):
    """Acquires new locks all the time, without waiting: each try needs a quorum that grants."""

    def __init__(self, nodes):
        super().__init__(daemon=True)
        self.taken, self.trouble, self.done = 0, None, threading.Event()
        self._urls = nodes.urls

    def run(self):
        try:
            with Client(self._urls, lease=LEASE, node_timeout=LEASE / 3) as client:  # patient with the machine
                while not self.done.wait(0.01):
                    with client.get_lock(f"new:{self.taken}", timeout=0):
                        self.taken += 1
        except Exception as error:
            self.trouble = error


@pytest.mark.sweep
def test_rolling_restart_loses_no_hold_and_never_lacks_a_quorum(three, eventually):
    eventually(lambda: ask_doctor(three) == 0)  # they are new: no client gets a lock at first
    time.sleep(FOR_WHOLE_SECONDS)
    lost = []
    with Client(three.urls, lease=LEASE) as client, client.get_lock("x", on_lost=lost.append) as hold:
        newcomer = Newcomer(three)
        newcomer.start()
        eventually(lambda: newcomer.taken or newcomer.trouble)
        for i in range(3):
            taken = newcomer.taken
            three.kill(i)
            eventually(lambda taken=taken: newcomer.taken > taken or newcomer.trouble)
            three.restart(i)
            eventually(lambda: ask_doctor(three) == 0)
            time.sleep(FOR_WHOLE_SECONDS)
            assert newcomer.trouble is None
            hold.check()
        newcomer.done.set()
        newcomer.join(10)
        assert newcomer.trouble is None
        eventually(lambda: [node.state for node in client.nodes()] == ["up"] * 3)
    assert lost == []
