"""The only way to standard output and standard error: a line that is given here is one line, and does nothing else.

Names, owners, hosts, programs, versions and error texts are chosen by whoever can write to a node, or is one. Raw, they
could move the cursor, recolour or retitle the terminal, hide text, or look like a line of ours. So all control and
format characters, line ends among them, are escaped on their way out, whichever command writes. Commands neither print
nor touch the streams: a linter and a test look for it.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, TextIO

from redsync._core.text import printable

__all__ = [
    "Line",
    "draw",
    "enter_screen",
    "leave_screen",
    "prompt",
    "put",
    "shown",
    "take_over",
    "told_error",
    "warn",
    "write_json",
]

_ENTER, _LEAVE, _HOME = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l", "\x1b[H"
_END_OF_LINE, _END_OF_SCREEN = "\x1b[K", "\x1b[J"
_STYLES: Final = {"": "", "heading": "\x1b[7m", "bold": "\x1b[1m", "bad": "\x1b[31m", "faint": "\x1b[2m"}
_PLAIN: Final = "\x1b[0m"


class Line(NamedTuple):
    """A line of a screen.

    Attributes:
        text: What it says.
        style: "" or a key of the styles: "heading", "bold", "bad", "faint".
    """

    text: str
    style: str = ""


def shown(text: str | bytes) -> str:
    """Return a text with what would play tricks with a terminal escaped; to do it twice changes nothing."""
    return printable(text.decode("utf-8", "backslashreplace") if isinstance(text, bytes) else text)


def put(*lines: str, flush: bool = False) -> None:
    """Write lines to standard output.

    Raises:
        BrokenPipeError: Nobody reads any more.
    """
    _write(sys.stdout, "".join(f"{line}\n" for line in _fit(lines, sys.stdout)), flush=flush)


def warn(*lines: str) -> None:
    """Write lines to standard error, at once."""
    _write(sys.stderr, "".join(f"{line}\n" for line in _fit(lines, sys.stderr)))


def prompt(*lines: str) -> None:
    """Ask on standard error: what is typed stands behind the last line."""
    _write(sys.stderr, "\n".join(_fit(lines, sys.stderr)) + " ")


def write_json(value: Any) -> None:
    """Write a value to standard output at once, as JSON in one line of ASCII."""
    import json

    put(json.dumps(value), flush=True)


def enter_screen() -> None:
    """Begin to draw on a screen of our own."""
    _write(sys.stdout, _ENTER)


def leave_screen() -> None:
    """Give the terminal back as it was."""
    _write(sys.stdout, _LEAVE)


def draw(lines: Sequence[Line]) -> None:
    """Draw a screen over the one before; on a cleared screen it would flicker."""
    plain = "NO_COLOR" in os.environ
    texts = _fit([line.text for line in lines], sys.stdout)
    drawn = (
        text if plain or not line.style else f"{_STYLES[line.style]}{text}{_PLAIN}"
        for text, line in zip(texts, lines, strict=True)
    )
    _write(sys.stdout, _HOME + "\r\n".join(line + _END_OF_LINE for line in drawn) + _END_OF_SCREEN)


def take_over() -> None:
    """Let what others write in this process to standard error, log lines and the ends of threads, come here as well."""
    import logging
    import threading

    class Escaping(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            error = record.exc_info[1] if record.exc_info else None
            # Who logs has other things to do than to learn that nobody reads it.
            with contextlib.suppress(OSError, ValueError):
                warn(record.getMessage(), *(told_error(error) if error else ()))

    def tell_end(end: threading.ExceptHookArgs) -> None:
        if end.exc_value is not None and not isinstance(end.exc_value, SystemExit):
            warn(f"in a thread, {end.thread and end.thread.name}:", *told_error(end.exc_value))

    # What logs without a handler of its own goes there; nobody configures one in a process of ours.
    logging.lastResort = Escaping(logging.WARNING)
    threading.excepthook = tell_end


def told_error(error: BaseException) -> list[str]:
    """Return the lines of an error's traceback."""
    import traceback

    return [line for text in traceback.format_exception(error) for line in text.rstrip("\n").split("\n")]


def _fit(lines: Iterable[str], stream: TextIO | None) -> list[str]:
    """Return the lines as that stream can show them."""
    encoding = getattr(stream, "encoding", None)
    return [
        line if line.isascii() or not encoding else line.encode(encoding, "backslashreplace").decode(encoding)
        for line in map(shown, lines)
    ]


def _write(stream: TextIO | None, text: str, *, flush: bool = True) -> None:
    if stream is None:  # closed before we were started
        return
    stream.write(text)
    if flush:
        stream.flush()
