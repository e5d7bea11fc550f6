"""A control group for the command, where this process may make one: it ends everybody in it at once, whoever they are.

Signals can't reach a process that has taken another user's identity, and can be outrun by one that forks faster than
/proc is read. A control group (version 2) can't: `cgroup.kill` ends all its members in one step of the kernel. It is a
group below our own, so that limits and service managers still apply. Where systemd runs we make one only where it has
delegated its tree (`Delegate=yes`), as it asks of others.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

__all__ = ["Cgroup"]

_MARKS = ("trusted.delegate", "user.delegate")


class Cgroup:
    """A control group of the command's own; without effect where there may be none."""

    def __init__(self) -> None:
        self._path: Path | None = None
        # Read-only in most containers; not ours for most users.
        with contextlib.suppress(OSError):
            ours = _our_group()
            if ours is not None and _is_ours(ours):
                # Each container has a process 1, and more than one may be in the same group.
                path = ours / f"redsync-{os.getpid()}-{os.urandom(4).hex()}"
                path.mkdir()
                self._path = path
                if not (path / "cgroup.kill").exists():  # Linux before 5.14
                    self.remove()

    def join(self) -> None:
        """Move this process into it."""
        self._write("cgroup.procs", "0")

    def kill(self) -> None:
        """Kill everybody in it."""
        self._write("cgroup.kill", "1")

    def remove(self) -> None:
        """Remove it, if nobody is left in it, with those below that a killed `redsync lock` could not remove."""
        if self._path is not None:
            for path, _, _ in os.walk(self._path, topdown=False):
                # Its other owner, or the service manager, may have been faster.
                with contextlib.suppress(OSError):
                    os.rmdir(path)

    def _write(self, name: str, text: str) -> None:
        if self._path is not None:
            with contextlib.suppress(OSError):
                (self._path / name).write_text(text)


def _our_group() -> Path | None:
    """Return the directory of the group that this process is in."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    ours = next((line.removeprefix("0::") for line in lines if line.startswith("0::")), None)
    for line in Path("/proc/self/mountinfo").read_text().splitlines() if ours else ():
        fields, _, kind = line.partition(" - ")
        if kind.startswith("cgroup2 "):
            return Path(fields.split()[4] + str(ours))
    return None


def _is_ours(path: Path) -> bool:
    if not Path("/run/systemd/system").exists():
        return True
    for above in (path, *path.parents):
        for mark in _MARKS:
            with contextlib.suppress(OSError):
                if os.getxattr(above, mark) == b"1":
                    return True
    return False
