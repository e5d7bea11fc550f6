"""The demo's display: a live table in a terminal where rich is installed, else a plain line every second."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from redsync.cli.output import put, shown

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

__all__ = ["LiveView", "NodeLine", "PlainView", "Snapshot", "View", "choose_view"]

_COLOURS: Final = {"up": "green", "quarantined": "yellow", "suspect": "red", "down": "red"}

_LINE_EVERY = 1.0


@dataclass(frozen=True)
class NodeLine:
    """One node at one instant.

    Attributes:
        address: `host:port`.
        state: As a client sees it: "up", "down", "suspect" or "quarantined".
        mark: What the demo did to it, empty if nothing that still counts.
    """

    address: str
    state: str
    mark: str = ""

    def __str__(self) -> str:
        return f"{self.state} ({self.mark})" if self.mark else self.state


@dataclass(frozen=True)
class Snapshot:
    """The run at one instant.

    Attributes:
        elapsed: Seconds since its start.
        seconds: How long it will last.
        acquisitions: How many there were.
        per_second: How many there were in the last second.
        trouble: How many attempts failed: too few nodes, a timeout, or a lost hold.
        nodes: The nodes.
    """

    elapsed: float
    seconds: float
    acquisitions: int
    per_second: float
    trouble: int
    nodes: Sequence[NodeLine]


class View(Protocol):
    """Where the demo shows itself."""

    def say(self, text: str) -> None:
        """Show a line that stays."""
        ...

    def update(self, snapshot: Snapshot) -> None:
        """Show the run as it is now; called often."""
        ...

    def table(self, rows: Sequence[tuple[str, str]], failures: Sequence[bool]) -> None:
        """Show the report; `failures` tells which of its rows show a broken promise."""
        ...

    def close(self) -> None:
        """Remove what does not stay."""
        ...


def choose_view() -> View:
    """Return the view that suits standard output."""
    if sys.stdout.isatty():
        try:
            from rich.console import Console
        except ImportError:
            return PlainView(_put)
        console = Console(highlight=False)
        if not console.is_dumb_terminal:
            return LiveView(console)
    return PlainView(_put)


def _put(*lines: str) -> None:
    put(*lines, flush=True)


class PlainView:
    """Lines of text, for logs, pipes and terminals without rich."""

    def __init__(self, put: Callable[..., None]) -> None:
        self._put = put
        self._next_line = 0.0

    def say(self, text: str) -> None:
        """Print a line."""
        self._put(*text.split("\n"))

    def update(self, snapshot: Snapshot) -> None:
        """Print the run in a line, once per second of it."""
        if snapshot.elapsed < self._next_line:
            return
        self._next_line = snapshot.elapsed // _LINE_EVERY + _LINE_EVERY
        trouble = f", {snapshot.trouble} failed" if snapshot.trouble else ""
        self.say(
            f"{snapshot.elapsed:5.1f} s  {snapshot.acquisitions:>7,} acquisitions, {snapshot.per_second:>5,.0f}/s"
            f"{trouble}  nodes: {', '.join(map(str, snapshot.nodes))}"
        )

    def table(self, rows: Sequence[tuple[str, str]], failures: Sequence[bool]) -> None:
        """Print the report in two columns."""
        captions = max(len(caption) for caption, _ in rows)
        figures = max(len(figure) for _, figure in rows)
        self.say("")
        for (caption, figure), failed in zip(rows, failures, strict=True):
            self.say(f"  {caption:<{captions}}  {figure:>{figures}}{'  <- must be 0' if failed else ''}")
        self.say("")

    def close(self) -> None:
        """Do nothing: all lines stay."""


class LiveView:
    """A table that is updated in place, and permanent lines above it."""

    def __init__(self, console: Console) -> None:
        from rich.live import Live

        self._console = console
        self._live = Live(console=console, transient=True, refresh_per_second=8)
        self._live.start()

    def say(self, text: str) -> None:
        """Print a line above the table."""
        self._console.print("\n".join(map(shown, text.split("\n"))), markup=False)

    def update(self, snapshot: Snapshot) -> None:
        """Show the run in the table."""
        self._live.update(_render(snapshot))

    def table(self, rows: Sequence[tuple[str, str]], failures: Sequence[bool]) -> None:
        """Print the report; what must be 0 is green or red."""
        from rich.box import SIMPLE
        from rich.table import Table

        table = Table(box=SIMPLE, show_header=False)
        table.add_column()
        table.add_column(justify="right")
        verdicts = len(rows) - 3
        for index, ((caption, figure), failed) in enumerate(zip(rows, failures, strict=True)):
            style = "bold red" if failed else "bold green" if index >= verdicts else ""
            table.add_row(caption, figure, style=style)
        self._console.print(table)

    def close(self) -> None:
        """Remove the table; the lines stay."""
        self._live.stop()


def _render(snapshot: Snapshot) -> RenderableType:
    from rich.box import SIMPLE
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    nodes = Table("node", "address", "state", "", box=SIMPLE)
    for number, node in enumerate(snapshot.nodes, 1):
        nodes.add_row(str(number), node.address, Text(node.state, style=_COLOURS.get(node.state, "")), node.mark)
    figures = Text.assemble(
        (f"{snapshot.acquisitions:,}", "bold"),
        f" acquisitions, {snapshot.per_second:,.0f} per second, {snapshot.trouble} attempts failed, "
        f"{min(snapshot.elapsed, snapshot.seconds):.1f} of {snapshot.seconds:g} s",
    )
    progress = Table.grid()  # gives the bar a line of its own
    progress.add_row(ProgressBar(total=snapshot.seconds, completed=min(snapshot.elapsed, snapshot.seconds), width=60))
    progress.add_row(figures)
    return Group(nodes, progress)
