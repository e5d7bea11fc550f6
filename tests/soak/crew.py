"""The client processes of a soak, as those who run it see them: to be started, stopped, killed, and told to finish.

Processes lead sessions of their own, so that Ctrl-C reaches the test alone, which then kills them. If the test is
killed, the kernel kills them (`worker.die_with_parent`), also the stopped ones.

A client is a number; each time it is started again it is a new process with a journal of its own: another *life*.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from redsync.cli.demo_ledger import now_ns
from tests.soak import journal
from tests.soak.worker import LAST_PATIENCE, Order

ROOT = Path(__file__).parents[2]
START_PATIENCE = 30.0
END_PATIENCE = 3 * LAST_PATIENCE
LINES = 60


class RunFailedError(Exception):
    """The run can't be judged: a process ended by itself, or not at all."""


@dataclass
class Life:
    """One process of a client.

    Attributes:
        client: Which client it is.
        workers: The numbers of its threads, counted over all processes of the run.
        process: The process.
        journal: What it writes.
        stderr: What it says; nothing, unless something is wrong.
        killed_at: An instant just before it was killed; None if it was not.
    """

    client: int
    workers: range
    process: subprocess.Popen
    journal: Path
    stderr: Path
    killed_at: int | None = None

    def said(self) -> str:
        return "\n".join(self.stderr.read_text(errors="replace").splitlines()[-LINES:])


class Crew:
    """Some clients, none before `start`; leaving the `with` block kills those that are left.

    Attributes:
        lives: All processes that ever were, in the order of their start.
    """

    def __init__(
        self,
        directory: Path,
        make_order: Callable[[int, int, Path], Order],
        within: Callable[[int], Sequence[str]] = lambda _: (),
    ):
        """Make a crew.

        Args:
            directory: Where journals are kept.
            make_order: Returns what a client is to do, by its number, how many threads were there before its own, and
                its journal.
            within: Returns what stands before the command of a client, by its number.
        """
        self._directory = directory
        self._make_order = make_order
        self._within = within
        self._threads = 0
        self._current: dict[int, Life] = {}
        self.lives: list[Life] = []

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for life in self.lives:
            life.process.kill()  # nothing, where it was waited for
        for life in self.lives:
            life.process.wait()
            life.process.stdin.close()

    def start(self, client: int):
        """Start a client, for the first time or anew."""
        name = f"client-{client}.{len(self.lives)}"
        path, stderr = self._directory / f"{name}.journal", self._directory / f"{name}.stderr"
        order = self._make_order(client, self._threads, path)
        with stderr.open("wb") as errors:
            process = subprocess.Popen(
                [*self._within(client), sys.executable, "-m", "tests.soak.worker"],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=errors,
                stderr=errors,
                bufsize=0,
                start_new_session=True,
            )
            workers = range(order.first, order.first + order.threads)
            life = self._current[client] = Life(client, workers, process, path, stderr)
            self.lives.append(life)
        self._threads += order.threads
        process.stdin.write(order.line())

    def kill(self, client: int):
        life = self._current.pop(client)
        self._check(life)
        life.killed_at = now_ns()
        life.process.kill()
        life.process.wait()
        life.process.stdin.close()

    def stop(self, client: int):
        os.kill(self._current[client].process.pid, signal.SIGSTOP)

    def go_on(self, client: int):
        os.kill(self._current[client].process.pid, signal.SIGCONT)

    def await_first_grants(self):
        """Return when every client has had a lock: the nodes being new, they give nothing to anybody at first."""
        deadline = time.monotonic() + START_PATIENCE
        for life in self._current.values():
            while all(line["event"] != "grant" for line in journal.read(life.journal)):
                self._check(life)
                if time.monotonic() > deadline:
                    raise RunFailedError(f"client {life.client} got no lock in {START_PATIENCE:g} s; {life.said()}")
                time.sleep(0.02)

    def check(self):
        """Return if all clients that should run do.

        Raises:
            RunFailedError: One has ended by itself.
        """
        for life in self._current.values():
            self._check(life)

    def _check(self, life: Life):
        status = life.process.poll()
        if status is not None:
            raise RunFailedError(
                f"client {life.client} ended by itself with status {status} ({life.journal.name}); it said:\n"
                f"{life.said()}"
            )

    def _whereabouts(self, life: Life) -> str:
        """Return where the threads of a process are."""
        before = life.said()
        life.process.send_signal(signal.SIGUSR1)
        deadline = time.monotonic() + 5.0
        while life.said() == before and time.monotonic() < deadline:
            time.sleep(0.02)
        return life.said()

    def finish(self):
        """Tell all clients that the faults are over, and wait for their ends."""
        for life in self._current.values():
            self._check(life)
            life.process.stdin.write(b"finish\n")
        deadline = time.monotonic() + END_PATIENCE
        for life in self._current.values():
            try:
                status = life.process.wait(max(deadline - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                raise RunFailedError(f"client {life.client} does not end:\n{self._whereabouts(life)}") from None
            if status:
                raise RunFailedError(f"client {life.client} ended with status {status}; it said:\n{life.said()}")
