"""A client's process: identity, clock, random numbers, and a call at the process's end."""

from __future__ import annotations

import atexit
import os
import random
import socket
import sys
import time
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from redsync._core.client_records import ClientRecord
from redsync.exceptions import ClientClosedError

__all__ = ["REAL", "Environment", "at_exit", "clock", "describe_process", "forked"]

# While a machine is suspended, its leases run on at the nodes, so where possible they run on here too.
clock: Callable[[], float] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
)


def forked() -> ClientClosedError:
    """Return the error of a call that began before a fork, or for a permit from before it, in the child."""
    return ClientClosedError("this call or its permit began before this process was forked: only the parent can use it")


def describe_process() -> ClientRecord:
    """Return the record of a client made now in this process."""
    path = Path((getattr(sys, "argv", None) or [""])[0] or sys.executable)
    # `python -m package` runs package/__main__.py
    program = path.parent.name if path.name == "__main__.py" else path.name
    return ClientRecord(socket.gethostname(), os.getpid(), program, time.time())


class Environment(NamedTuple):
    """The process of a driver, as it sees it, except for connections; a simulation has its own.

    Attributes:
        clock: Returns the current instant in seconds; never goes back.
        random: Returns a random number from 0 to 1.
        new_id: Returns a new UUID, as text.
        describe: Returns the record of a client made now.
    """

    clock: Callable[[], float]
    random: Callable[[], float]
    new_id: Callable[[], str]
    describe: Callable[[], ClientRecord]


REAL: Final = Environment(clock, random.random, lambda: str(uuid.uuid4()), describe_process)


def at_exit(function: Callable[[], object]) -> None:
    """Call a function at an orderly end of this process, once or twice, however often it was registered.

    A multiprocessing child ends by `os._exit`, after its own finalizers. At its start it forgets its parent's
    finalizers, and those registered while its arguments are unpickled. So each process that connects must register
    again, and its finalizer is registered again after that start. Since Python 3.13 such a child also calls the
    functions registered with `atexit`.
    """
    util = sys.modules.get("multiprocessing.util")
    known = os.getpid(), function, util is not None
    if known in _asked_for:
        return
    _asked_for.add(known)
    atexit.unregister(function)
    atexit.register(function)
    if util is not None:
        _finalize(function)
        util.register_after_fork(function, _finalize)


def _finalize(function: Callable[[], object]) -> None:
    sys.modules["multiprocessing.util"].Finalize(None, function, exitpriority=0)


_asked_for: Final[set[tuple[int, Callable[[], object], bool]]] = set()
