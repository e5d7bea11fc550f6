"""The only way to standard output and standard error: each line given here appears as one line, with no other effect.

Anyone who can write to a node, or runs one, chooses names, owners, hosts, programs, versions and error texts. Raw text
could move the cursor, recolour or retitle the terminal, hide other text, or imitate our lines. So this module escapes
all control and format characters, line ends included; only `write` and `tell` do not, and take text that is safe.
Commands neither print nor touch the streams; a linter and a test enforce that.

Standard error only explains: we drop a message that can't be written, and the exit status does not change. Standard
output is the result: if it can't be written, the command ends with `SetupError`. A stream that was closed before our
start has no reader: we use /dev/null instead.

The second half words what the inspecting commands show; their tables are in `tables`.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import Any

from redsync._core.text import printable
from redsync.cli.exits import BROKEN_PIPE, UNWRITABLE, SetupError


def shown(text: str | bytes) -> str:
    """Return text with control and format characters escaped; idempotent."""
    return printable(text.decode("utf-8", "backslashreplace") if isinstance(text, bytes) else text)


def open_streams() -> None:
    """Prepare the streams of a process that is ours alone, before it opens anything else.

    Otherwise a socket or pipe of ours could get the number of a closed stream, and writes to the stream would go there.
    So /dev/null takes that number. It closes on exec: a process that we start finds the stream closed, as we did. Both
    output streams escape what they can't encode.
    """
    with contextlib.suppress(OSError):  # no /dev, or no descriptor: the stream stays None
        for number, name in enumerate(("stdin", "stdout", "stderr")):
            if getattr(sys, name) is None:
                # open() takes the lowest free number, and those below are open.
                os.open(os.devnull, os.O_RDWR)
                setattr(sys, name, open(number, "r" if name == "stdin" else "w", closefd=False))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    stream, is_ours = sys.stderr, sys.stderr is sys.__stderr__
    if stream is not None and is_ours:
        # A buffer would keep text that can't be written: the interpreter would try again as it exits, with status 120.
        raw = io.FileIO(stream.fileno(), "w", closefd=False)
        sys.stderr = io.TextIOWrapper(raw, stream.encoding, stream.errors, write_through=True)


def put(*lines: str) -> None:
    """Write lines to standard output at once.

    Raises:
        SetupError: They can't be written.
    """
    write("".join(f"{shown(line)}\n" for line in lines))


def warn(*lines: str) -> None:
    """Write lines to standard error at once; drop them if that fails."""
    tell("".join(f"{shown(line)}\n" for line in lines))


def write(text: str) -> None:
    """Write our own text to standard output at once, unescaped.

    Raises:
        SetupError: It can't be written.
    """
    if sys.stdout is None:
        return
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        # The interpreter flushes the rest of the buffer as it exits, which must not fail too.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = BROKEN_PIPE if isinstance(error, BrokenPipeError) else UNWRITABLE
        raise SetupError(f"standard output can't be written: {error.strerror}", status) from error


def tell(text: str) -> None:
    """Write our own text to standard error, unescaped; drop it if that fails."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(text)
            sys.stderr.flush()


def write_json(value: Any) -> None:
    """Write a value to standard output at once, as one line of ASCII JSON."""
    import json

    # DEL is the one ASCII control character that json does not escape.
    write(json.dumps(value).replace("\x7f", "\\u007f") + "\n")


def told(seconds: float | None) -> str:
    """Return a duration for people."""
    if seconds is None:
        return "-"
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def clock(since: float) -> str:
    """Return an instant, seconds since 1970, for people."""
    import time

    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(since))
    except (OverflowError, ValueError, OSError):  # any program may write a record
        return "-"
