"""The demo's display: a live table in a terminal if rich is installed, else a plain line every second."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from redsync.cli.output import put, shown
from redsync.cli.writing import wrapped

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

__all__ = ["LiveView", "NodeLine", "PlainView", "Snapshot", "View", "choose_view"]

_GOOD: Final = "color(28)"
_COLOURS: Final = {"up": _GOOD, "quarantined": "color(130)", "suspect": "red", "down": "red"}
"""Green and orange that contrast with black and with white by nearly 4.5 : 1."""

_LINE_EVERY = 1.0


@dataclass(frozen=True)
class NodeLine:
    """One node at one instant.

    Attributes:
        address: `host:port`.
        state: As a client sees it: "up", "down", "suspect" or "quarantined".
        mark: "killed" or "hung" while the demo keeps it out, else "".
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
        seconds: The duration of the run.
        acquisitions: The number of acquisitions so far.
        per_second: The number of acquisitions in the last second.
        trouble: The number of failures: too few nodes, a timeout, or a lost hold.
        nodes: The nodes.
    """

    elapsed: float
    seconds: float
    acquisitions: int
    per_second: float
    trouble: int
    nodes: Sequence[NodeLine]


def choose_view() -> View:
    """Return the view for standard output."""
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
    put(*(part for line in lines for part in wrapped(line, "") or [""]), flush=True)


class PlainView:
    """Lines of text, for logs, pipes and terminals without rich."""

    def __init__(self, put: Callable[..., None]) -> None:
        self._put = put
        self._next_line = 0.0

    def say(self, text: str) -> None:
        """Print a line."""
        self._put(*text.split("\n"))

    def update(self, snapshot: Snapshot) -> None:
        """Print a line about the run, once per second."""
        if snapshot.elapsed < self._next_line:
            return
        self._next_line = snapshot.elapsed // _LINE_EVERY + _LINE_EVERY
        trouble = f", {snapshot.trouble} failed" if snapshot.trouble else ""
        self.say(
            f"{snapshot.elapsed:5.1f} s  {snapshot.acquisitions:>7,} acquisitions, {snapshot.per_second:>5,.0f}/s"
            f"{trouble}  nodes: {', '.join(map(str, snapshot.nodes))}"
        )

    def table(self, rows: Sequence[tuple[str, str]], failures: Sequence[bool]) -> None:
        """Print the report in two columns; `failures` is True for each row that shows a broken promise."""
        captions = max(len(caption) for caption, _ in rows)
        figures = max(len(figure) for _, figure in rows)
        self.say("")
        for (caption, figure), failed in zip(rows, failures, strict=True):
            self.say(f"  {caption:<{captions}}  {figure:>{figures}}{'  <- must be 0' if failed else ''}")
        self.say("")

    def close(self) -> None:
        """Do nothing: all lines are permanent."""


class LiveView:
    """A live table, with permanent lines above it."""

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
        """Print the report; figures that must be 0 are green or red."""
        from rich.box import SIMPLE
        from rich.table import Table

        table = Table(box=SIMPLE, show_header=False)
        table.add_column()
        table.add_column(justify="right")
        verdicts = len(rows) - 3
        for index, ((caption, figure), failed) in enumerate(zip(rows, failures, strict=True)):
            style = "bold red" if failed else f"bold {_GOOD}" if index >= verdicts else ""
            table.add_row(caption, figure, style=style)
        self._console.print(table)

    def close(self) -> None:
        """Remove the table; the lines stay."""
        self._live.stop()


View: TypeAlias = PlainView | LiveView


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
    progress = Table.grid()  # puts the bar on a separate line
    progress.add_row(ProgressBar(total=snapshot.seconds, completed=min(snapshot.elapsed, snapshot.seconds), width=60))
    progress.add_row(figures)
    return Group(nodes, progress)
