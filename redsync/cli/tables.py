"""The tables of the inspecting commands; only these need the extra `cli`."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Sequence
from typing import Final, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from redsync.cli.output import shown, write

_WIDEST: Final = 100_000  # the width of a table that is not for a terminal, so that each row is one line


def console(file: TextIO | None = None) -> Console:
    """Return rich's console for standard output, or one of the same kind that writes to a file."""
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    return Console(file=file, highlight=False, force_terminal=is_terminal, width=None if is_terminal else _WIDEST)


def line(text: str, style: str) -> Text:
    """Return an escaped line, cut if the terminal is too narrow."""
    return Text(shown(text), style, no_wrap=True, overflow="ellipsis")


def table_of(headings: Iterable[str], rows: Iterable[Iterable[str]], *, cut: bool = False) -> Table:
    """Return a table of escaped cells; if the terminal is too narrow, cells are folded, or cut to one line."""
    table = Table(*headings, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(Text(shown(cell), no_wrap=cut, overflow="ellipsis" if cut else "fold") for cell in row))
    return table


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]], *, turns: bool = False) -> None:
    """Write a table; if the terminal is too narrow for one that `turns`, its rows become columns."""
    out = console()
    table = table_of(headings, rows)
    if turns and out.measure(table, options=out.options.update(max_width=_WIDEST)).maximum > out.width:
        first, *others = zip(headings, *rows, strict=True)
        table = table_of(first, others)
    write_table(table)


def write_table(table: Table) -> None:
    """Write one of rich's tables."""
    drawn = io.StringIO()
    console(drawn).print(table)
    write("".join(f"{line.rstrip()}\n" for line in drawn.getvalue().splitlines()))
