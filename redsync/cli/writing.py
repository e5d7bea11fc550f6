"""The inspecting commands' output for people: aligned text."""

from __future__ import annotations

import os
import sys
import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from redsync.cli.output import put, shown, warn

if TYPE_CHECKING:
    from redsync._core.presence import ClientRecord
    from redsync.cli.asking import Answer

__all__ = [
    "PagedTable",
    "cells",
    "clock",
    "complain",
    "fitted",
    "narrowed",
    "print_table",
    "process",
    "short",
    "table",
    "told",
    "who",
    "wrapped",
]


_NARROWEST: Final = 10
"""The least width to which a table's column is cut, in columns of the terminal."""

_UUID: Final = 36
"""Characters of a UUID; the first eight are enough to tell clients apart."""


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table with left-aligned columns and escaped cells."""
    rows = escaped(rows)
    widths = [max(map(cells, column)) for column in zip(headings, *rows, strict=True)]
    lines = (
        "  ".join(cell + " " * (width - cells(cell)) for cell, width in zip(row, widths, strict=True))
        for row in [headings, *rows]
    )
    return [line.rstrip() for line in lines]


def escaped(rows: Sequence[Sequence[str]]) -> list[Sequence[str]]:
    """Return rows with escaped cells, to measure their width."""
    return [tuple(map(shown, row)) for row in rows]


def narrowed(
    headings: Sequence[str], rows: Sequence[Sequence[str]], width: int, columns: Sequence[int]
) -> list[Sequence[str]]:
    """Return the rows of a table; if it is too wide, cut the given columns, one after the other, until it fits."""
    rows = escaped(rows)
    for column in columns:
        excess = max(map(cells, table(headings, rows))) - width
        widest = max((cells(row[column]) for row in rows), default=0)
        if excess > 0 and widest > _NARROWEST:
            keep = max(widest - excess, _NARROWEST)
            rows = [(*row[:column], fitted(row[column], keep), *row[column + 1 :]) for row in rows]
    return rows


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Write a table; if the terminal is too narrow for it, write the rows as columns, as many side by side as fit."""
    width = _terminal_width()
    lines = table(headings, rows)
    if width and max(map(cells, lines)) > width:
        blocks: list[list[str]] = []
        left = list(rows)
        while left:
            count = next(
                (n for n in range(len(left), 1, -1) if max(map(cells, _turned(headings, left[:n]))) <= width), 1
            )
            blocks.append(_turned(headings, left[:count]))
            left = left[count:]
        lines = [line for block in blocks for line in ("", *block)][1:]
    put(*lines)


def _turned(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table with a column for each row, the headings first."""
    first, *others = zip(headings, *rows, strict=True)
    return table(first, others)


class PagedTable:
    """A table that is written some rows at a time; its columns widen as needed, and never narrow."""

    def __init__(self, headings: Sequence[str], cut: Sequence[int]) -> None:
        """Prepare a table; the columns `cut` are cut if the terminal is too narrow."""
        self._headings = headings
        self._cut = cut
        self._is_begun = False

    def put(self, rows: Sequence[Sequence[str]]) -> None:
        """Write rows at once."""
        if not rows:
            return
        width = _terminal_width()
        rows = narrowed(self._headings, rows, width, self._cut) if width else escaped(rows)
        put(*table(self._headings, rows)[self._is_begun :], flush=True)
        # Later rows align with these.
        columns = zip(self._headings, *rows, strict=True)
        self._headings = [column[0].ljust(max(map(cells, column))) for column in columns]
        self._is_begun = True


def _terminal_width() -> int:
    """Return the width of the terminal in columns; 0 if standard output is not a terminal."""
    return os.get_terminal_size(sys.stdout.fileno()).columns if sys.stdout.isatty() else 0


def wrapped(text: str, indent: str, bullet: str = "") -> list[str]:
    """Return a text as indented lines that fit the terminal, or as one line if there is no terminal.

    All lines begin with `indent`. A bullet stands before the text, which aligns behind it; without one, later lines are
    indented more.
    """
    if not sys.stdout.isatty():
        return [indent + bullet + text]
    from textwrap import wrap

    width = max(os.get_terminal_size(sys.stdout.fileno()).columns, 40)
    later = indent + (" " * len(bullet) or "  ")
    return wrap(shown(text), width, initial_indent=indent + bullet, subsequent_indent=later, break_on_hyphens=False)


def cells(text: str) -> int:
    """Return the width of a text in columns of a terminal."""
    if text.isascii():
        return len(text)
    # A combining character takes no column, a wide East Asian character takes two.
    return sum(0 if unicodedata.combining(c) else 1 + (unicodedata.east_asian_width(c) in "WF") for c in text)


def fitted(text: str, width: int) -> str:
    """Return a text cut to at most `width` columns, with an ellipsis for the rest."""
    if cells(text) <= width:
        return text
    kept = text[: max(width - 1, 0)]
    while cells(kept) > width - 1 and kept:
        kept = kept[:-1]
    return f"{kept}…" if width > 0 else ""


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


def who(owner: str, client: ClientRecord | None) -> str:
    """Return an owner for people: its process, or else its id."""
    return f"{client.host}:{client.pid}" if client else owner


def process(holder: dict[str, Any]) -> str:
    """Return a holder, given in its JSON form, for people: its process, or else its id."""
    return f"{holder['host']}:{holder['pid']}" if holder["host"] else str(holder["owner"])


def short(owner: str) -> str:
    """Return an owner's id for people, with its UUID shortened."""
    client, _, serial = owner.partition(":")
    return f"{client[:8]}:{serial}" if len(client) == _UUID else owner


def complain(answers: Sequence[Answer[Any]]) -> None:
    """Report on standard error the nodes that did not answer, with the reason, and a lack of quorum."""
    for answer in answers:
        if answer.error is not None:
            warn(f"node {answer.node}: {answer.error}")
    answered, quorum = sum(answer.error is None for answer in answers), len(answers) // 2 + 1
    if answered < quorum:
        warn(f"too few nodes answer: {answered} of {len(answers)}; a quorum is {quorum}")
