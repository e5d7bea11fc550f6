"""All processes that a command has started, directly or indirectly: the descendants of this process.

On Linux this process becomes a *child subreaper*: a descendant whose parent ends becomes its child. So no process can
leave the family by `setsid`, `nohup`, a second fork or its own process group. We find members in /proc. Such a listing
is not a snapshot, because processes fork meanwhile. The kernel says when none is left: the chain of parents of each
living descendant leads here, so a process without children (ECHILD) has no descendants. Until then we list and signal
again: a process that one listing missed is by then a child of a member, or ours.

We can't signal a member that runs as another user (`cgroup` can, if there is one). Without /proc, or with the /proc of
another namespace, we know only the command's process group.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final, NamedTuple

__all__ = ["PARENT_DEATH_SIGNAL", "Family", "is_alone", "set_option"]

PARENT_DEATH_SIGNAL: Final = 1
CHILD_SUBREAPER: Final = 36
"""Options of prctl(2)."""

_LINUX: Final = sys.platform == "linux"
_PROC: Final = Path("/proc")
_PASSES: Final = 100


def _has_proc() -> bool:
    # The /proc of another process namespace shows other processes.
    try:
        return os.readlink(_PROC / "self") == str(os.getpid())
    except OSError:
        return False


class _Process(NamedTuple):
    state: str
    parent: int
    group: int
    threads: int

    @property
    def lives(self) -> bool:
        """True if it can still act; in a zombie, threads other than the first can."""
        return self.state not in "ZX" or self.threads > 1


class Family:
    """The descendants of this process.

    Attributes:
        gone: True once none is left.
    """

    def __init__(self) -> None:
        """Start empty: existing children do not belong to the family."""
        self.gone = False
        self._group = 0
        self._spared = _children()

    def adopt(self) -> None:
        """Become the parent of descendants whose parent ends."""
        set_option(CHILD_SUBREAPER, 1)

    def lead(self, group: int) -> None:
        """Set the process group that the command leads: its members are in the family, and get signals in one step."""
        self._group = group

    def members(self) -> dict[int, _Process]:
        """Return the living members, parents before children: a shell continues when a child it waits for ends."""
        table = dict(_processes())
        children: dict[int, list[int]] = {}
        for number, process in table.items():
            children.setdefault(process.parent, []).append(number)
        found: dict[int, _Process] = {}
        waiting = [number for number in children.get(os.getpid(), ()) if number not in self._spared]
        while waiting:
            number = waiting.pop(0)
            if table[number].lives:
                found[number] = table[number]
            waiting += children.get(number, ())
        return found

    def send(self, number: int, group: int | None = None, but: Collection[int] = ()) -> set[int]:
        """Send a signal to all members, or to those of one process group; return the members that got it."""
        if not _has_proc():
            return {self._group} if self._group and _send(number, -self._group) else set()
        chosen = [
            member for member, process in self.members().items() if member not in but and group in {None, process.group}
        ]
        if chosen and group == self._group:
            _send(number, -group)
        else:
            for member in chosen:
                _send(number, member)
        return set(chosen)

    def halt(self) -> None:
        """Stop all members. A stopped process can't fork, so a listing without new members is complete."""
        stopped: set[int] = set()
        for _ in range(_PASSES):
            more = self.send(signal.SIGSTOP, but=stopped)
            stopped |= more
            if not more or not _has_proc():
                return

    def reap(self) -> Iterator[tuple[int, int]]:
        """Yield process id and wait status of each child that ended or stopped; only their parent may call it."""
        while True:
            try:
                number, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            except ChildProcessError:
                self.gone = _LINUX or not _send(0, -self._group)
                return
            if not number:
                return
            yield number, status


def _children() -> set[int]:
    if not _has_proc():
        return set()
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return set()  # the usual case; listing all processes may be slow
    return {number for number, process in _processes() if process.parent == os.getpid()}


def is_alone() -> bool:
    """Return whether this process is alone in its process group, as far as /proc shows."""
    ours = os.getpgrp()
    return not any(
        process.group == ours and process.lives and number != os.getpid() for number, process in _processes()
    )


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


def _processes() -> Iterator[tuple[int, _Process]]:
    for name in os.listdir(_PROC) if _has_proc() else ():
        if name.isdigit():
            # It has ended, or we may not see it.
            with contextlib.suppress(OSError):
                stat = (_PROC / name / "stat").read_bytes()
                # The program's name is in parentheses, and may contain parentheses.
                fields = stat[stat.rindex(b")") + 2 :].split()
                yield int(name), _Process(fields[0].decode(), int(fields[1]), int(fields[2]), int(fields[17]))
