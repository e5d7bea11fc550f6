"""How the inspecting commands show themselves: aligned text for people, JSON for programs, and little to import."""

from __future__ import annotations

import os
import sys
import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from redsync._core.presence import ClientRecord
    from redsync.cli.asking import Answer

__all__ = [
    "cells",
    "clock",
    "complain",
    "fitted",
    "print_table",
    "process",
    "short",
    "shown",
    "table",
    "told",
    "who",
    "write_json",
]


_UUID: Final = 36
"""Characters of a UUID, of which eight tell clients apart well enough."""


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table, its columns aligned to the left."""
    widths = [max(map(cells, column)) for column in zip(headings, *rows, strict=True)]
    lines = (
        "  ".join(cell + " " * (width - cells(cell)) for cell, width in zip(row, widths, strict=True))
        for row in [headings, *rows]
    )
    return [line.rstrip() for line in lines]


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; where the terminal is too narrow for it, each row as a list with a line for each column."""
    lines = table(headings, rows)
    if sys.stdout.isatty() and max(map(cells, lines)) > os.get_terminal_size(sys.stdout.fileno()).columns > 0:
        indent = max(map(len, headings)) + 2
        lists = ["\n".join(f"{head:<{indent}}{cell}" for head, cell in zip(headings, row, strict=True)) for row in rows]
        lines = ["\n\n".join(lists)]
    print("\n".join(lines))


def cells(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    # What combines with the character before takes none, what East Asian typography calls wide takes two.
    return sum(0 if unicodedata.combining(c) else 1 + (unicodedata.east_asian_width(c) in "WF") for c in text)


def fitted(text: str, width: int) -> str:
    """Return a text that takes no more than so many columns; an ellipsis stands for what was cut off."""
    if cells(text) <= width:
        return text
    kept = text[: max(width - 1, 0)]
    while cells(kept) > width - 1 and kept:
        kept = kept[:-1]
    return f"{kept}…" if width > 0 else ""


def shown(text: str | bytes) -> str:
    """Return a name as it may be shown: what would play tricks with a terminal is escaped."""
    text = text.decode("utf-8", "backslashreplace") if isinstance(text, bytes) else text
    return "".join(
        c.encode("unicode_escape").decode() if unicodedata.category(c)[0] in "CZ" and c != " " else c for c in text
    )


def told(seconds: float | None) -> str:
    """Return a time for people."""
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
    except (OverflowError, ValueError, OSError):  # anybody may write a record
        return "-"


def who(owner: str, client: ClientRecord | None) -> str:
    """Return an owner for people: its process, or else the id."""
    return shown(f"{client.host}:{client.pid}" if client else owner)


def process(holder: dict[str, Any]) -> str:
    """Return a holder, as JSON describes it, for people: its process, or else the id."""
    return shown(f"{holder['host']}:{holder['pid']}" if holder["host"] else holder["owner"])


def short(owner: str) -> str:
    """Return an owner's id, shortened as far as people can tell it from others."""
    client, _, serial = owner.rpartition(":")
    return shown(f"{client[:8]}:{serial}" if len(client) == _UUID else owner)


def write_json(value: Any) -> None:
    """Write a value to standard output, as JSON in one line."""
    import json

    print(json.dumps(value), flush=True)


def complain(answers: Sequence[Answer[Any]]) -> None:
    """Say on standard error which nodes did not answer, and why."""
    for answer in answers:
        if answer.error is not None:
            print(f"node {answer.node}: {shown(answer.error)}", file=sys.stderr)
