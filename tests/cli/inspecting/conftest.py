"""The command as a user runs it: a process of its own, its output parsed, and a terminal to be asked at."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROGRAM = "import sys\nfrom redsync.cli import main\nsys.exit(main())"


class Ended:
    """A command that has ended."""

    def __init__(self, status, out, err):
        self.status, self.out, self.err = status, out, err

    @property
    def json(self):
        assert len(self.out.splitlines()) == 1, self.out + self.err
        return json.loads(self.out)


class Started:
    """A command that runs; on a terminal of its own, if it has one."""

    def __init__(self, arguments, environment, *, terminal=False):
        self._master, slave = pty.openpty() if terminal else (None, subprocess.PIPE)
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", PROGRAM, *arguments],
            env=environment,
            stdin=slave if terminal else subprocess.DEVNULL,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        if terminal:
            os.close(slave)
        self._out = self._master if terminal else self.process.stdout.fileno()
        self._seen = b""

    def read_until(self, text, within=20.0):
        """Return what it wrote up to some text, and go on behind it."""
        deadline = time.monotonic() + within
        while text.encode() not in self._seen:
            left = deadline - time.monotonic()
            assert left > 0, f"it did not write {text!r}, but {self._seen!r}"
            if select.select([self._out], [], [], left)[0]:
                try:
                    data = os.read(self._out, 65536)
                except OSError:  # the terminal's last user has gone
                    data = b""
                assert data, f"it ended without {text!r}, but {self._seen!r}"
                self._seen += data
        before, found, self._seen = self._seen.partition(text.encode())
        return (before + found).decode()

    def type(self, text):
        os.write(self._master, text.encode())

    def interrupt(self):
        self.process.send_signal(signal.SIGINT)

    def end(self):
        """Return its status; it must end by itself."""
        return self.process.wait(20)

    def clean_up(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
        if self._master is not None:
            os.close(self._master)


@pytest.fixture
def environment(nodes):
    """What the commands find there: the first three nodes."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("REDSYNC_")}
    urls = ",".join(nodes.urls[:3])
    return {**kept, "PYTHONPATH": str(ROOT), "REDSYNC_URLS": urls, "REDSYNC_RESTART_GUARD": "0", "TERM": "xterm"}


@pytest.fixture
def redsync(environment):
    """Run a command to its end."""

    def run(*arguments, **more):
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", PROGRAM, *arguments],
            env={**environment, **more},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        return Ended(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def start(environment):
    """Start a command."""
    started = []

    def start(*arguments, terminal=False, **more):
        started.append(Started(arguments, {**environment, **more}, terminal=terminal))
        return started[-1]

    yield start
    for command in started:
        command.clean_up()


@pytest.fixture
def three(make_client, all_nodes_met):
    """A client of the nodes that the commands look at."""
    return make_client(n=3)
