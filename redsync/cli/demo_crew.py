"""The worker processes of the demo, as the demo sees them.

Workers lead sessions of their own, so that Ctrl-C in the terminal reaches the demo alone, which then ends them. If it
can't, because it was killed, they end by themselves: their standard input, a pipe that nobody else holds, is closed.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from redsync.cli.demo_worker import Order

__all__ = ["Crew", "RunFailedError"]

_LINES = 40


class RunFailedError(Exception):
    """The run can't be judged: a worker ended early or not at all, or a node died by itself."""


class Crew:
    """Some worker processes, none before `start`; leaving the `with` block kills those that are left."""

    def __init__(self, orders: Sequence[Order]) -> None:
        self._orders = orders
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def start(self) -> None:
        """Start the processes; not to be interrupted, as one that was born but is not yet listed would be left."""
        for order in self._orders:
            with self._stderr_path(order).open("wb") as stderr:
                # -P: a file of the current directory that is called like one of our imports must not be taken for it.
                process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "redsync.cli.demo_worker"],
                    stdin=subprocess.PIPE,
                    stdout=stderr,
                    stderr=stderr,
                    bufsize=0,
                    start_new_session=True,
                )
            self._processes.append(process)
            self._write(process, order.to_json())

    def __exit__(self, *error: object) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
            assert process.stdin is not None
            process.stdin.close()

    def ready(self) -> bool:
        """Whether every worker could take a lock of its own."""
        return all(Path(order.directory, f"process-{order.process}.ready").exists() for order in self._orders)

    def go(self, begin: int, end: int) -> None:
        """Let all work from the first to the second instant, in ns of `now_ns`."""
        for process in self._processes:
            self._write(process, f"{begin} {end}")

    def working(self) -> bool:
        """Whether any worker still works.

        Raises:
            RunFailedError: One ended with an error.
        """
        statuses = [process.poll() for process in self._processes]
        for order, status in zip(self._orders, statuses, strict=True):
            if status:
                sentence = f"worker process {order.process} ended with status {status}"
                raise RunFailedError(f"{sentence}; it said:\n{self._said_by(order)}")
        return None in statuses

    def said(self) -> str:
        """Return what the workers wrote to standard error: nothing, unless something was wrong."""
        return "\n".join(filter(None, map(self._said_by, self._orders)))

    def _said_by(self, order: Order) -> str:
        return "\n".join(self._stderr_path(order).read_text(errors="replace").splitlines()[-_LINES:])

    @staticmethod
    def _stderr_path(order: Order) -> Path:
        return Path(order.directory, f"process-{order.process}.stderr")

    @staticmethod
    def _write(process: subprocess.Popen[bytes], line: str) -> None:
        assert process.stdin is not None
        # One that has ended is noticed by `working`, which can say why.
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(f"{line}\n".encode())
