"""Ends the command of `redsync lock` if we are killed (SIGKILL, out of memory), and nobody renews its lock any more.

A small shell, in a session of its own, reads from a pipe that only we can write to. A line dismisses it; the end of the
pipe without one means that we are gone.
"""

from __future__ import annotations

import subprocess
from types import TracebackType
from typing import Final, Self

__all__ = ["Survivor"]

_SCRIPT: Final = """
read -r word && exit
kill -s TERM -- "-$1"; kill -s CONT -- "-$1"
sleep "$2"
kill -s KILL -- "-$1"
"""
_PATIENCE = 2.0


class Survivor:
    """Watches over the command's process group for as long as the `with` block lasts."""

    def __init__(self, group: int, kill_after: float) -> None:
        """Start it.

        Args:
            group: The command's process group.
            kill_after: Seconds between SIGTERM and SIGKILL.
        """
        self._process = subprocess.Popen(  # noqa: S603
            ["/bin/sh", "-c", _SCRIPT, "redsync-survivor", str(group), f"{kill_after:.3f}"],
            stdin=subprocess.PIPE,
            # Whoever reads our output must not wait for it.
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Dismiss it, and wait for its end."""
        try:
            self._process.communicate(b"dismissed\n", timeout=_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
