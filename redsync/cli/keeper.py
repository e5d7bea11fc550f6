"""Our side of the keeper: the process that keeps the deadline of the command, whatever becomes of us.

It is a copy of this process, made before there are threads, connections or a lock: small, and with nothing in it that
could fail later. Each of the two watches the other. If we are stopped, the keeper learns of no later deadline; if we
end, it reads the end of the wire. In both cases it ends the command in time. If the keeper ends before the command, the
kernel kills the command itself (PR_SET_PDEATHSIG), and we kill what the command has started, which is ours by then.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Collection, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn, Self

from redsync.cli.cgroup import Cgroup
from redsync.cli.deadlines import Policy
from redsync.cli.family import Family
from redsync.cli.keeping import Keeping
from redsync.cli.wire import NOTHING, Wire

if TYPE_CHECKING:
    from redsync import Hold

__all__ = ["Keeper"]


class Keeper:
    """The keeper, for as long as the `with` block lasts.

    Attributes:
        wire: The wire to it.
        number: Its process number.
    """

    def __init__(self, command: list[str], environment: Mapping[str, str], spurned: Collection[int]) -> None:
        """Start it.

        Args:
            command: The words of the command that it will run.
            environment: The command's environment, without the owner and the fencing token.
            spurned: The signals that the command is to ignore.

        Raises:
            OSError: No process can be started.
        """
        self._family = Family()
        self.wire, other = Wire.pair()
        self._cgroup = Cgroup()
        # A signal to the copy while it still has our handlers would make it act as a second `redsync lock`.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            self.number = os.fork()
            if not self.number:
                self.wire.close()
                _become_keeper(lambda: Keeping(other, command, environment, self._cgroup, spurned), before)
            with contextlib.suppress(PermissionError, ProcessLookupError):
                os.setpgid(self.number, self.number)
        except OSError:
            self._cgroup.remove()
            self.wire.close()
            raise
        finally:
            other.close()
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def begin(self, hold: Hold, until: float, place: str, policy: Policy) -> None:
        """Let it start the command under that hold, which ends at that instant."""
        # First, because if the keeper is killed in the next moment, what the command has started must be ours.
        self._family.adopt()
        numbers = (policy.kill_after, policy.margin, policy.max_hold)
        token = NOTHING if hold.fencing_token is None else hold.fencing_token
        self.wire.send("run", place, os.getpgrp(), until, hold.owner, token, policy.on_lost, *numbers)

    def lead(self, group: int) -> None:
        """Say which process group the command leads."""
        self._family.lead(group)

    def enforce(self) -> None:
        """Kill all that it keeps, as it should have done by now, and make it go on in case it was stopped."""
        self._family.send(signal.SIGKILL, but=(self.number,))
        self._wake()

    def strike(self) -> set[int]:
        """Kill all that it has kept, and the keeper if it has not ended; return the processes that were there."""
        self._cgroup.kill()
        return self._family.send(signal.SIGKILL)

    def look_after(self) -> None:
        """Make it go on if it was stopped, and reap children left to us if we are the first process of a container."""
        # Where this can't be asked, a keeper that was stopped goes on when it is too late, see `enforce`.
        with contextlib.suppress(ChildProcessError):
            if sys.platform == "linux" and os.waitid(os.P_PID, self.number, os.WSTOPPED | os.WNOHANG):
                self._wake()
        with contextlib.suppress(ChildProcessError):
            while os.getpid() == 1 and os.waitpid(-1, os.WNOHANG)[0]:
                pass

    def _wake(self) -> None:
        """Make it go on if it was stopped."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.number, signal.SIGCONT)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the wire, which ends the keeper, and wait for its end."""
        self.wire.close()
        self._wake()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.number, 0)
        self._cgroup.remove()


def _become_keeper(prepare: Callable[[], Keeping], mask: set[int]) -> NoReturn:
    """Run as the keeper, to the end of this process."""
    try:
        os.setpgid(0, 0)
        keeping = prepare()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        keeping.run()
    finally:
        # Whatever failed, the parent sees the end of the wire. `_exit` runs none of the parent's clean-up a second
        # time.
        os._exit(0)
