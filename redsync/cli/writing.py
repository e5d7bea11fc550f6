"""How the inspecting commands show themselves: aligned text for people, JSON for programs, and nothing to import."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from redsync._core.presence import ClientRecord
    from redsync.cli.asking import Answer

__all__ = ["complain", "shown", "table", "told", "who", "write_json"]


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table, its columns aligned to the left."""
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    lines = (
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)) for row in [headings, *rows]
    )
    return [line.rstrip() for line in lines]


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


def who(owner: str, client: ClientRecord | None) -> str:
    """Return an owner for people: its process, or else the id."""
    return shown(f"{client.host}:{client.pid}" if client else owner)


def write_json(value: Any) -> None:
    """Write a value to standard output, as JSON in one line."""
    import json

    print(json.dumps(value), flush=True)


def complain(answers: Sequence[Answer[Any]]) -> None:
    """Say on standard error which nodes did not answer, and why."""
    for answer in answers:
        if answer.error is not None:
            print(f"node {answer.node}: {shown(answer.error)}", file=sys.stderr)
