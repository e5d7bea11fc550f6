"""The controlling terminal of this session, if there is one: its foreground process group."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

__all__ = ["foreground", "give"]

_PATH = "/dev/tty"


def foreground() -> int | None:
    """Return the foreground process group; None if there is no terminal, or it is gone."""
    try:
        with _opened() as terminal:
            return os.tcgetpgrp(terminal)
    except OSError:
        return None


def give(group: int) -> None:
    """Put a process group into the foreground. SIGTTOU must be ignored: it stops a caller in the background."""
    # The group has ended, or the terminal is gone.
    with contextlib.suppress(OSError), _opened() as terminal:
        os.tcsetpgrp(terminal, group)


@contextlib.contextmanager
def _opened() -> Iterator[int]:
    terminal = os.open(_PATH, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        yield terminal
    finally:
        os.close(terminal)
