"""Commands as real processes: tests read their output, type to them, and find all descendants by an inherited mark."""

import contextlib
import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
import uuid
from pathlib import Path
from typing import NamedTuple

from redsync.cli import main
from tests.support.nursery import Born

PATIENCE = 30

RELUCTANT = "trap '' TERM INT; echo ready; sleep 3600 & while :; do wait; done"
"""A shell program that only SIGKILL ends."""

SESSION = [
    sys.executable,
    "-c",
    "import fcntl,os,sys,termios\nfcntl.ioctl(0, termios.TIOCSCTTY, 0)\nos.execv(sys.argv[1], sys.argv[1:])",
]
"""Starts a command in the foreground of the terminal that is its standard input."""


class Terminal:
    """The user's side of a pseudo-terminal."""

    def __init__(self, columns=100, lines=30):
        self.master, self.slave = pty.openpty()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def type(self, text):
        os.write(self.master, text.encode())

    def hand_over(self):
        """Leave the other side to the processes that were started with it."""
        os.close(self.slave)
        self.slave = -1

    def close(self):
        os.close(self.master)
        if self.slave >= 0:
            os.close(self.slave)


class Ended(NamedTuple):
    """The result of a command that has ended."""

    status: int
    out: str
    err: str

    @property
    def json(self):
        assert len(self.out.splitlines()) == 1, self.out + self.err
        return json.loads(self.out)


def run_here(arguments, capsys):
    """Run a command to its end in this process."""
    try:
        status = main(arguments)
    except SystemExit as end:
        status = end.code
    return Ended(status, *capsys.readouterr())


class Command(Born):
    """A running command: from the nursery if given, else a fresh process, started by the words of `before`."""

    def __init__(self, arguments, environment, *, nursery=None, before=(), terminal=None, **options):
        self.is_alone = not before and not terminal
        self.mark = f"redsync-test-{uuid.uuid4()}"
        self.terminal = terminal
        self._seen = b""
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        if terminal:
            streams = dict.fromkeys(streams, terminal.slave)
            before = [*SESSION, *before]
        super().__init__(
            nursery,
            arguments if nursery else [*before, sys.executable, "-m", "redsync.cli", *arguments],
            env={**environment, "MARK": self.mark},
            text=True,
            start_new_session=True,
            **streams | options,
        )
        if terminal:
            terminal.hand_over()

    def finish(self):
        """Wait for its end; return its result, without the output read before."""
        out, err = self.communicate(timeout=PATIENCE)
        return Ended(self.returncode, self._seen.decode() + (out or ""), err)

    def end(self):
        """Wait until it ends automatically; return its status."""
        return self.wait(PATIENCE)

    def interrupt(self):
        self.send_signal(signal.SIGINT)

    def read_until(self, text):
        """Return its output up to and including `text`; the next call continues behind it."""
        out = self.terminal.master if self.terminal else self.stdout.fileno()
        deadline = time.monotonic() + PATIENCE
        while text.encode() not in self._seen:
            left = deadline - time.monotonic()
            assert left > 0, f"it wrote {self._seen!r}, not {text!r}"
            if select.select([out], [], [], left)[0]:
                try:
                    data = os.read(out, 65536)
                except OSError:  # the terminal's last user is gone
                    data = b""
                assert data, f"it ended with {self._seen!r}, without {text!r}"
                self._seen += data
        before, found, self._seen = self._seen.partition(text.encode())
        return (before + found).decode()

    def type(self, text):
        self.terminal.type(text)

    def tree(self):
        """Return the processes with its mark, itself included, and the copies of itself in its session."""
        found = set()
        for path in Path("/proc").glob("[0-9]*"):
            # It has ended, or belongs to another user.
            with contextlib.suppress(OSError):
                if self.mark.encode() in (path / "environ").read_bytes() or self._has_copied_itself(path):
                    found.add(int(path.name))
        return found

    def _has_copied_itself(self, path):
        return bool(self._nursery) and os.getsid(int(path.name)) == self.pid and (path / "environ").read_bytes() != b""

    def command_group(self):
        """Return the process group of the command that `redsync lock` runs with -c."""
        (leader,) = (
            number
            for number in self.tree()
            if command_line(number)[:2] == [b"/bin/sh", b"-c"]
            and os.getpgid(number) == number
            and os.getsid(number) != number
        )
        return leader

    def clean_up(self):
        """Kill all its processes that are left."""
        for number in self.tree() | ({self.pid} if self.poll() is None else set()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        self.wait()
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                stream.close()
        if self.terminal:
            self.terminal.close()


def command_line(number):
    """Return the words of a process's command line; none if it has ended."""
    try:
        return Path(f"/proc/{number}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []
