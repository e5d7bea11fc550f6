"""The only way to standard output and standard error: each line given here appears as one line, with no other effect.

Anyone who can write to a node, or runs one, chooses names, owners, hosts, programs, versions and error texts. Raw text
could move the cursor, recolour or retitle the terminal, hide other text, or imitate our lines. So this module escapes
all control and format characters, line ends included. Commands neither print nor touch the streams; a linter and a test
enforce that.

Standard error only explains: we drop a message that can't be written, and the exit status does not change. Standard
output is the result: if it can't be written, the command ends with `OutputError`. A stream that was closed before our
start has no reader: we use /dev/null instead.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TextIO

from redsync._core.text import printable
from redsync.cli.exits import BROKEN_PIPE, UNWRITABLE, OutputError

__all__ = [
    "Line",
    "draw",
    "enter_screen",
    "flush",
    "leave_screen",
    "open_streams",
    "prompt",
    "put",
    "shown",
    "take_over",
    "tell",
    "told_error",
    "warn",
    "write",
    "write_json",
    "write_json_members",
]

_ENTER, _LEAVE, _HOME = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l", "\x1b[H"
_END_OF_LINE, _END_OF_SCREEN = "\x1b[K", "\x1b[J"
_STYLES: Final = {"": "", "heading": "\x1b[7m", "bold": "\x1b[1m", "bad": "\x1b[31m", "faint": "\x1b[2m"}
_PLAIN: Final = "\x1b[0m"


class Line(NamedTuple):
    """A line of a screen.

    Attributes:
        text: Its text.
        style: "", "heading", "bold", "bad" or "faint".
    """

    text: str
    style: str = ""


def shown(text: str | bytes) -> str:
    """Return text with control and format characters escaped; idempotent."""
    return printable(text.decode("utf-8", "backslashreplace") if isinstance(text, bytes) else text)


def open_streams() -> None:
    """Prepare the streams of a process that is ours alone, before it opens anything else.

    Otherwise a socket or pipe of ours could get the number of a closed stream, and writes to the stream would go there.
    So /dev/null takes that number. It closes on exec: a process that we start finds the stream closed, as we did.
    """
    with contextlib.suppress(OSError):  # no /dev, or no descriptor: the stream stays None
        for number, name in enumerate(("stdin", "stdout", "stderr")):
            if getattr(sys, name) is None:
                # open() takes the lowest free number, and those below are open.
                os.open(os.devnull, os.O_RDWR)
                setattr(sys, name, open(number, "r" if name == "stdin" else "w", closefd=False))  # noqa: SIM115
    stream, is_ours = sys.stderr, sys.stderr is sys.__stderr__
    if stream is not None and is_ours:
        # A buffer would keep text that can't be written: the interpreter would try again as it exits, with status 120.
        raw = io.FileIO(stream.fileno(), "w", closefd=False)
        sys.stderr = io.TextIOWrapper(raw, stream.encoding, stream.errors, write_through=True)


def put(*lines: str, flush: bool = False) -> None:
    """Write lines to standard output.

    Raises:
        OutputError: They can't be written.
    """
    write("".join(f"{line}\n" for line in _fit(lines, sys.stdout)), flush=flush)


def flush() -> None:
    """Flush standard output.

    Raises:
        OutputError: It can't be written.
    """
    write("")


def warn(*lines: str) -> None:
    """Write lines to standard error at once; drop them if that fails."""
    tell("".join(f"{line}\n" for line in _fit(lines, sys.stderr)))


def prompt(*lines: str) -> None:
    """Write a question to standard error; the user types after its last line."""
    tell("\n".join(_fit(lines, sys.stderr)) + " ")


def write(text: str, *, flush: bool = True) -> None:
    """Write our own text to standard output, unescaped.

    Raises:
        OutputError: It can't be written.
    """
    if sys.stdout is None:
        return
    try:
        if text:
            sys.stdout.write(text)
        if flush:
            sys.stdout.flush()
    except OSError as error:
        # The interpreter flushes the rest of the buffer as it exits, which must not fail too.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = BROKEN_PIPE if isinstance(error, BrokenPipeError) else UNWRITABLE
        raise OutputError(f"standard output can't be written: {error.strerror}", status) from error


def tell(text: str) -> None:
    """Write our own text to standard error, unescaped; drop it if that fails."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(text)
            sys.stderr.flush()


def write_json(value: Any) -> None:
    """Write a value to standard output at once, as one line of ASCII JSON."""
    write(f"{_json(value)}\n")


def write_json_members(members: Iterable[tuple[str, Any]]) -> None:
    """Write an object as one line of ASCII JSON, member by member; an iterator becomes a list, element by element."""
    before = "{"
    for name, value in members:
        write(f"{before}{_json(name)}: ", flush=False)
        if isinstance(value, Iterator):
            write("[", flush=False)
            for number, element in enumerate(value):
                write(f"{', ' if number else ''}{_json(element)}", flush=False)
            write("]", flush=False)
        else:
            write(_json(value), flush=False)
        before = ", "
    write("}\n")


def _json(value: Any) -> str:
    import json

    # DEL is the one ASCII control character that json does not escape.
    return json.dumps(value).replace("\x7f", "\\u007f")


def enter_screen() -> None:
    """Switch to our own screen."""
    write(_ENTER)


def leave_screen() -> None:
    """Restore the terminal's screen."""
    write(_LEAVE)


def draw(lines: Sequence[Line]) -> None:
    """Draw a screen over the previous one; clearing it first would flicker."""
    plain = "NO_COLOR" in os.environ
    texts = _fit([line.text for line in lines], sys.stdout)
    drawn = (
        text if plain or not line.style else f"{_STYLES[line.style]}{text}{_PLAIN}"
        for text, line in zip(texts, lines, strict=True)
    )
    write(_HOME + "\r\n".join(line + _END_OF_LINE for line in drawn) + _END_OF_SCREEN)


def take_over() -> None:
    """Route the log lines and thread errors of other code through this module."""
    import logging
    import threading

    class Escaping(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            error = record.exc_info[1] if record.exc_info else None
            warn(record.getMessage(), *(told_error(error) if error else ()))

    def tell_end(end: threading.ExceptHookArgs) -> None:
        if end.exc_value is not None and not isinstance(end.exc_value, SystemExit):
            warn(f"error in thread {end.thread and end.thread.name}:", *told_error(end.exc_value))

    # The handler of last resort: no code configures another one in a process that is ours alone.
    logging.lastResort = Escaping(logging.WARNING)
    threading.excepthook = tell_end


def told_error(error: BaseException) -> list[str]:
    """Return the lines of an error's traceback."""
    import traceback

    return [line for text in traceback.format_exception(error) for line in text.rstrip("\n").split("\n")]


def _fit(lines: Iterable[str], stream: TextIO | None) -> list[str]:
    """Return the lines as the stream can encode them."""
    encoding = getattr(stream, "encoding", None)
    return [
        line if line.isascii() or not encoding else line.encode(encoding, "backslashreplace").decode(encoding)
        for line in map(shown, lines)
    ]
