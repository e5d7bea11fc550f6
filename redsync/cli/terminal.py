"""The terminal that controls this session, if there is one: which process group is in its foreground."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

__all__ = ["foreground", "give"]

_PATH = "/dev/tty"


def foreground() -> int | None:
    """Return the process group in the foreground; None if there is no terminal, or it has gone."""
    try:
        with _opened() as terminal:
            return os.tcgetpgrp(terminal)
    except OSError:
        return None


def give(group: int) -> None:
    """Put a process group into the foreground. SIGTTOU must be ignored: it stops a caller in the background."""
    # That group has ended, or the terminal has.
    with contextlib.suppress(OSError), _opened() as terminal:
        os.tcsetpgrp(terminal, group)


@contextlib.contextmanager
def _opened() -> Iterator[int]:
    terminal = os.open(_PATH, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        yield terminal
    finally:
        os.close(terminal)
