"""Our side of the keeper, the process that enforces the command's deadline even if `redsync lock` stops or ends.

It is a copy of this process, forked before there are threads, connections or a lock: small, with nothing in it that can
fail later. The two processes watch each other. If we are stopped, the keeper hears of no later deadline; if we end, it
reads the end of the wire. In both cases it ends the command in time. If the keeper ends before the command, the kernel
kills the command (PR_SET_PDEATHSIG), and we kill the command's descendants, which are ours by then.
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
    """The keeper, which runs until the end of the `with` block.

    Attributes:
        wire: The wire to it.
        number: Its process id.
    """

    def __init__(self, command: list[str], environment: Mapping[str, str], spurned: Collection[int]) -> None:
        """Start it; the environment still lacks the owner and the token, and the command ignores the spurned signals.

        Raises:
            OSError: No process can be started.
        """
        self._family = Family()
        self.wire, other = Wire.pair()
        self._cgroup = Cgroup()
        # A signal would make a copy that still has our handlers act as a second `redsync lock`.
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
        """Tell it to start the command under that hold, which ends at `until`."""
        # Adopt first: if the keeper is killed a moment later, the command's descendants must be ours.
        self._family.adopt()
        numbers = (policy.kill_after, policy.margin, policy.max_hold)
        token = NOTHING if hold.fencing_token is None else hold.fencing_token
        self.wire.send("run", place, os.getpgrp(), until, hold.owner, token, policy.on_lost, *numbers)

    def lead(self, group: int) -> None:
        """Set the process group that the command leads."""
        self._family.lead(group)

    def enforce(self) -> None:
        """Kill the command and its descendants, as the keeper should have done, and continue a stopped keeper."""
        self._family.send(signal.SIGKILL, but=(self.number,))
        self._wake()

    def strike(self) -> set[int]:
        """Kill the command, its descendants and the keeper; return the processes that were there."""
        self._cgroup.kill()
        return self._family.send(signal.SIGKILL)

    def look_after(self) -> None:
        """Continue the keeper if it was stopped; as the first process of a container, also reap orphans."""
        # On other systems a stopped keeper continues only when it is late, see `enforce`.
        with contextlib.suppress(ChildProcessError):
            if sys.platform == "linux" and os.waitid(os.P_PID, self.number, os.WSTOPPED | os.WNOHANG):
                self._wake()
        with contextlib.suppress(ChildProcessError):
            while os.getpid() == 1 and os.waitpid(-1, os.WNOHANG)[0]:
                pass

    def _wake(self) -> None:
        """Continue it if it was stopped."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.number, signal.SIGCONT)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the wire, which ends the keeper, and wait for that."""
        self.wire.close()
        self._wake()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.number, 0)
        self._cgroup.remove()


def _become_keeper(prepare: Callable[[], Keeping], mask: set[int]) -> NoReturn:
    """Run as the keeper until this process ends."""
    try:
        os.setpgid(0, 0)
        keeping = prepare()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        keeping.run()
    finally:
        # The parent sees the end of the wire even after a failure. `_exit` does not repeat the parent's clean-up.
        os._exit(0)
