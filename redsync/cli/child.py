"""Starts the command of `redsync lock` as a child of the keeper, in the right process group.

Normally the command gets its own process group. A signal sent to us then reaches it and its descendants exactly once:
through us. If we have the terminal, we hand it to the command, unless our process group has other members. A pager in
our pipeline, for example, would then be in the background, and the kernel stops a background process that touches the
terminal. So in a pipeline, or in a script whose shell shares our group, the command stays in our group.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Final, NoReturn

from redsync.cli.deadlines import now
from redsync.cli.family import PARENT_DEATH_SIGNAL, set_option
from redsync.cli.terminal import give
from redsync.cli.wire import is_ready

if TYPE_CHECKING:
    from redsync.cli.cgroup import Cgroup

__all__ = ["FRONT", "OWN", "SHARED", "launch"]

OWN: Final = "own"
"""The command has its own process group."""
FRONT: Final = "front"
"""The command has its own process group, in the foreground of the terminal."""
SHARED: Final = "shared"
"""The command is in the process group of `redsync lock`."""

# Python ignores these signals from its start; programs do not expect that.
_RESTORED: Final = (signal.SIGPIPE, *(getattr(signal, name) for name in ("SIGXFSZ",) if hasattr(signal, name)))


def launch(
    command: list[str],
    environment: Mapping[str, str],
    *,
    place: str,
    group: int,
    cgroup: Cgroup,
    handled: Collection[int],
    tied: bool,
    until: float,
) -> int:
    """Start a command; return its process id.

    Args:
        command: The command and its arguments.
        environment: Its whole environment.
        place: Its process group: `OWN`, `FRONT` or `SHARED`.
        group: The process group of `redsync lock`.
        cgroup: The control group that it joins if `tied`.
        handled: Signals to reset to their default action.
        tied: Kill the command if the calling process ends first.
        until: Kill the command if it has not started by this instant.

    Raises:
        OSError: The command can't be executed.
    """
    reader, writer = os.pipe()
    parent = os.getpid()
    number = os.fork()
    if not number:
        try:
            _settle(place, group)
            if tied:
                cgroup.join()
                set_option(PARENT_DEATH_SIGNAL, signal.SIGKILL)
                if os.getppid() != parent:
                    os._exit(0)
            for each in (*handled, *_RESTORED):
                signal.signal(each, signal.SIG_DFL)
            _execute(command, environment)
        except BaseException as error:
            _fail(writer, error)
    os.close(writer)
    # A command that was stopped before it started, or waits for a slow disk, must not start once another owner may have
    # the lock.
    if not is_ready(until - now(), reader):
        os.kill(number, signal.SIGKILL)
    with open(reader, "rb") as told:
        failure = told.read()
    if failure:
        os.waitpid(number, 0)
        raise OSError(int(failure), os.strerror(int(failure)), command[0])
    return number


def _settle(place: str, group: int) -> None:
    if place == SHARED:
        os.setpgid(0, group)
    else:
        os.setpgid(0, 0)
        if place == FRONT:
            give(os.getpid())


def _execute(command: list[str], environment: Mapping[str, str]) -> NoReturn:
    try:
        os.execvpe(command[0], command, environment)  # noqa: S606
    except OSError as error:
        import shutil

        script = shutil.which(command[0], path=environment.get("PATH"))
        if error.errno != errno.ENOEXEC or script is None:
            raise
        # Like execvp(3), run a script without a `#!` line in the shell.
        os.execve("/bin/sh", ["/bin/sh", script, *command[1:]], environment)  # noqa: S606


def _fail(writer: int, error: BaseException) -> NoReturn:
    """Report to the parent why the command can't be executed, and end this child."""
    number = error.errno if isinstance(error, OSError) else None
    os.write(writer, b"%d" % (number or 5))  # EIO
    os._exit(1)
