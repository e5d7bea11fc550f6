"""All processes that a command has started, directly or indirectly: the descendants of this process.

On Linux this process becomes a *child subreaper*: a descendant whose parent ends becomes its child. So no process can
leave the tree by `setsid`, `nohup`, a second fork or its own process group. We find members in /proc. Such a listing is
not a snapshot, because processes fork meanwhile. The kernel says when none is left: the chain of parents of each living
descendant leads here, so a process without children (ECHILD) has no descendants. Until then we list and signal again: a
process that one listing missed is by then a child of a member, or ours.

Children that this process had before it became `redsync lock`, by `exec`, are members too.

We can't signal a member that runs as another user. Without /proc, or with the /proc of another namespace, we know only
the command's process group, or the command alone if it shares the group of `redsync lock`.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

PARENT_DEATH_SIGNAL: Final = 1
CHILD_SUBREAPER: Final = 36  # options of prctl(2); the second makes us the parent of descendants whose parent ends
_LINUX: Final = sys.platform == "linux"
_PROC: Final = Path("/proc")


def _has_proc() -> bool:
    # The /proc of another process namespace shows other processes.
    try:
        return os.readlink(_PROC / "self") == str(os.getpid())
    except OSError:
        return False


class ProcessTree:
    """The descendants of this process.

    Attributes:
        gone: True once none is left.
    """

    def __init__(self) -> None:
        self.gone = False
        self._command = self._group = 0

    def lead(self, command: int, group: int) -> None:
        """Set the command's process and its process group, 0 for one that it leads, which gets signals in one step."""
        self._command, self._group = -command if not group else command, group or command

    def members(self) -> dict[int, int]:
        """Return the living members, with the process group of each.

        Parents come before children, as a shell continues when a child that it waits for ends.
        """
        processes = dict(_processes())
        children: dict[int, list[int]] = {}
        for number, (parent, _, _) in processes.items():
            children.setdefault(parent, []).append(number)
        found: dict[int, int] = {}
        waiting = children.get(os.getpid(), [])
        while waiting:
            number = waiting.pop(0)
            _, group, lives = processes[number]
            if lives:
                found[number] = group
            waiting += children.get(number, ())
        return found

    def send(self, number: int, group: int | None = None) -> set[int]:
        """Send a signal to all members, or to those of one process group; return the members that got it."""
        if not _has_proc():
            return {abs(self._command)} if self._command and _send(number, self._command) else set()
        chosen = [member for member, its_group in self.members().items() if group in {None, its_group}]
        if chosen and group == -self._command:
            _send(number, self._command)
        else:
            for member in chosen:
                _send(number, member)
        return set(chosen)

    def forward(self, number: int) -> None:
        """Send a signal to the command's process group, as a terminal does; after its end to all that it left."""
        self.send(number, self._group if abs(self._command) in self.members() else None)

    def reap(self) -> Iterator[tuple[int, int]]:
        """Yield process id and wait status of each child that has ended; only their parent may call it."""
        while True:
            try:
                number, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self.gone = _LINUX or not _send(0, self._command)
                return
            if not number:
                return
            yield number, status


def set_option(option: int, value: int) -> None:
    """Call prctl(2), on Linux."""
    if _LINUX:
        import ctypes

        # On a kernel without the option the call fails, and we continue without its effect.
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _send(number: int, whom: int) -> bool:
    """Send a signal to a process, or to a group if `whom` is negative; return whether the target exists."""
    try:
        os.kill(whom, number)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        pass
    return True


def _processes() -> Iterator[tuple[int, tuple[int, int, bool]]]:
    """Yield each process, with its parent, its process group, and whether it can still act."""
    for name in os.listdir(_PROC) if _has_proc() else ():
        if name.isdigit():
            # It has ended, or we may not see it.
            with contextlib.suppress(OSError):
                stat = (_PROC / name / "stat").read_bytes()
                # The program's name is in parentheses, and may contain parentheses.
                fields = stat[stat.rindex(b")") + 2 :].split()
                # In a zombie, threads other than the first can act.
                yield int(name), (int(fields[1]), int(fields[2]), fields[0] not in b"ZX" or int(fields[17]) > 1)
