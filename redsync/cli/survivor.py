"""Ends the command of `redsync lock` if we are killed (SIGKILL, out of memory), and nobody renews its lock any more.

A small shell, in a session of its own, reads from a pipe that only we can write to: first whom to end. A second line
dismisses it; the end of the pipe without one means that we are gone. It is started before the command, so that there is
no more than an instant in which the command runs and it does not know of that.
"""

from __future__ import annotations

import contextlib
import subprocess
from types import TracebackType
from typing import Final, Self

from redsync.cli.child import spawn

__all__ = ["Survivor"]

_SCRIPT: Final = """
read -r group || exit
read -r word && exit
kill -s TERM -- "-$group"; kill -s CONT -- "-$group"
PATH=$PATH:/bin:/usr/bin
sleep "$1"
kill -s KILL -- "-$group"
"""
_PATIENCE = 2.0


class Survivor:
    """Watches over the command's process group for as long as the `with` block lasts."""

    def __init__(self, kill_after: float) -> None:
        """Start it.

        Args:
            kill_after: Seconds between SIGTERM and SIGKILL.
        """
        self._process = spawn(
            ["/bin/sh", "-c", _SCRIPT, "redsync-survivor", f"{kill_after:.3f}"],
            stdin=subprocess.PIPE,
            # Whoever reads our output must not wait for it.
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def watch(self, group: int) -> None:
        """Tell it which process group to end."""
        assert self._process.stdin is not None
        # Should it have ended, nothing is lost but the precaution.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(b"%d\n" % group)
            self._process.stdin.flush()

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
