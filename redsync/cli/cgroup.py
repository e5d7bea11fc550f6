"""A control group for the command, if this process may create one: it kills all its processes at once.

We can't signal a process that runs as another user, and a process that forks faster than we read /proc can outrun our
signals. Neither escapes a control group (version 2): `cgroup.kill` ends all members in one step of the kernel. The
group is below our own, so that limits and service managers still apply. Under systemd we create one only in a delegated
subtree (`Delegate=yes`), as systemd requires.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

__all__ = ["Cgroup"]

_MARKS = ("trusted.delegate", "user.delegate")


class Cgroup:
    """The command's own control group; without effect if we may not create one."""

    def __init__(self) -> None:
        self._path: Path | None = None
        # The tree is read-only in most containers, and most users do not own it.
        with contextlib.suppress(OSError):
            ours = _our_group()
            if ours is not None and _is_ours(ours):
                # Process ids are not unique here: containers may share a group, and each has a process 1.
                path = ours / f"redsync-{os.getpid()}-{os.urandom(4).hex()}"
                path.mkdir()
                self._path = path
                if not (path / "cgroup.kill").exists():  # Linux before 5.14
                    self.remove()

    def join(self) -> None:
        """Move this process into it."""
        self._write("cgroup.procs", "0")

    def kill(self) -> None:
        """Kill all processes in it."""
        self._write("cgroup.kill", "1")

    def remove(self) -> None:
        """Remove it if it is empty, and groups below it that a killed `redsync lock` left."""
        if self._path is not None:
            for path, _, _ in os.walk(self._path, topdown=False):
                # The other process that uses it, or the service manager, may have removed it.
                with contextlib.suppress(OSError):
                    os.rmdir(path)

    def _write(self, name: str, text: str) -> None:
        if self._path is not None:
            with contextlib.suppress(OSError):
                (self._path / name).write_text(text)


def _our_group() -> Path | None:
    """Return the directory of this process's group."""
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
