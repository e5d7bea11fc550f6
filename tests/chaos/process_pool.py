"""The client processes of a run, controlled from outside: start, stop, kill and finish them.

Processes lead their own sessions, so that Ctrl-C in the terminal reaches only the run, which then ends them. If the run
itself is killed, they end too: each reads from a pipe that only the run keeps open, and on Linux the kernel kills them,
even stopped ones.

A client is a number. Each start is a new process with its own history: another *life*.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from tests.chaos import history
from tests.chaos.history import now_ns
from tests.chaos.jobs import Job

_COMMAND: Final = (sys.executable, "-m", "tests.chaos.client_process")
"""The command that starts a client process, in the directory `ROOT`."""

ROOT: Final = Path(__file__).parents[2]

_START_TIMEOUT: Final = 30.0
_END_TIMEOUT: Final = 90.0
_LINES: Final = 60


class RunFailedError(Exception):
    """The run can't be judged: a process ended early or not at all, or a node died by itself."""


@dataclass
class Life:
    """One process of a client.

    Attributes:
        client: The client's number.
        owners: The numbers of its owners, counted over all processes of the run.
        process: The process.
        history: The history that it writes.
        stderr: Its standard error: empty, unless something is wrong.
        killed_at: An instant just before it was killed; None if it was not killed.
    """

    client: int
    owners: range
    process: subprocess.Popen[bytes]
    history: Path
    stderr: Path
    killed_at: int | None = None

    def said(self) -> str:
        """Return the end of its standard error."""
        return "\n".join(self.stderr.read_text(errors="replace").splitlines()[-_LINES:])

    def tell(self, line: bytes) -> None:
        """Write a line to its standard input."""
        assert self.process.stdin is not None
        # `check` notices that a process has ended, and says why.
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(line)

    def check(self) -> bool:
        """Return whether it still runs; raise if it ended with an error."""
        status = self.process.poll()
        if status:
            raise RunFailedError(f"{self} ended by itself with status {status}; it said:\n{self.said()}")
        return status is None

    def end(self) -> None:
        """Wait for its end, which is certain to come."""
        assert self.process.stdin is not None
        self.process.wait()
        self.process.stdin.close()

    def __str__(self) -> str:
        return f"worker process {self.client} ({self.history.name})"


class ProcessPool:
    """Some clients, none before `start`; leaving the `with` block kills those that are left."""

    def __init__(
        self,
        directory: Path,
        make_order: Callable[[int, int, Path], Job],
    ) -> None:
        """Make a process pool that keeps its histories in a directory.

        `make_order` returns the order of a client by its number, the number of owners before its own, and its history.
        """
        self._directory = directory
        self._make_job = make_order
        self._owners = 0
        self._current: dict[int, Life] = {}
        self.lives: list[Life] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for life in self.lives:
            life.process.kill()  # does nothing to a process that has ended
        for life in self.lives:
            life.end()

    def start(self, client: int) -> None:
        """Start a client, for the first time or again.

        Must not be interrupted: a process that was started but is not yet listed would stay.
        """
        name = f"process-{client}.{len(self.lives)}"
        path, stderr = self._directory / f"{name}.history", self._directory / f"{name}.stderr"
        job = self._make_job(client, self._owners, path)
        with stderr.open("wb") as errors:
            process = subprocess.Popen(
                _COMMAND,
                stdin=subprocess.PIPE,
                stdout=errors,
                stderr=errors,
                bufsize=0,
                cwd=ROOT,
                start_new_session=True,
            )
        owners = range(job.first, job.first + job.owners)
        life = self._current[client] = Life(client, owners, process, path, stderr)
        self.lives.append(life)
        self._owners += job.owners
        life.tell(job.line())

    def go(self, client: int | None = None) -> None:
        """Let all clients, or one, work until `finish`."""
        for life in self._current.values() if client is None else [self._current[client]]:
            life.tell(b"go\n")

    def noted(self, event: str) -> bool:
        """Return whether every client has written such an event."""
        lives = self._current.values()
        return all(any(line["event"] == event for line in history.read(life.history)) for life in lives)

    def await_all(self, event: str, timeout: float = _START_TIMEOUT) -> None:
        """Return when every client has written such an event.

        Raises:
            RunFailedError: A client did not write it in time, or has ended by itself.
        """
        deadline = time.monotonic() + timeout
        while not self.noted(event):
            self.check()
            if time.monotonic() > deadline:
                raise RunFailedError(f"not every client was {event} in {timeout:g} s; they said:\n{self.said()}")
            time.sleep(0.02)

    def kill(self, client: int) -> None:
        """Kill a client."""
        life = self._current.pop(client)
        self._check(life)
        life.killed_at = now_ns()
        life.process.kill()
        life.end()

    def stop(self, client: int) -> None:
        """Stop a client, as SIGSTOP does."""
        os.kill(self._current[client].process.pid, signal.SIGSTOP)

    def go_on(self, client: int) -> None:
        """Let a stopped client continue."""
        os.kill(self._current[client].process.pid, signal.SIGCONT)

    def working(self) -> bool:
        """Return whether any client still works.

        Raises:
            RunFailedError: A client ended with an error.
        """
        statuses = [life.check() for life in self._current.values()]  # each may have failed
        return True in statuses

    def check(self) -> None:
        """Check that all clients that should run do.

        Raises:
            RunFailedError: A client has ended by itself.
        """
        for life in self._current.values():
            self._check(life)

    def _check(self, life: Life) -> None:
        if not life.check():
            raise RunFailedError(f"{life} ended before it was asked to; its output:\n{life.said()}")

    def finish(self) -> None:
        """Tell all clients that the faults are over, and wait until they end.

        Raises:
            RunFailedError: A client does not end, or ended with an error.
        """
        for life in self._current.values():
            life.tell(b"finish\n")
        deadline = time.monotonic() + _END_TIMEOUT
        for life in self._current.values():
            try:
                life.process.wait(max(deadline - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                raise RunFailedError(f"{life} does not end:\n{self._whereabouts(life)}") from None
            life.check()

    def said(self) -> str:
        """Return what the clients wrote to standard error: nothing, unless something was wrong."""
        return "\n".join(filter(None, (life.said() for life in self.lives)))

    def _whereabouts(self, life: Life) -> str:
        """Return the stacks of a process's threads."""
        before = life.said()
        life.process.send_signal(signal.SIGUSR1)
        deadline = time.monotonic() + 5.0
        while life.said() == before and time.monotonic() < deadline:
            time.sleep(0.02)
        return life.said()
