"""Plots of the published figures: a free lock, failed nodes, contention, and many held locks.

They are drawn only from the figures in `PUBLISHED`, so that `tools/figures.py` can redraw them and find stale ones. A
library without figures is left out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from bench.drawing import Colour, Figure

__all__ = ["PUBLISHED", "Row", "plots", "rows_of"]

_WIDTH: Final = 860
_STEP: Final = 24
_LABELS: Final = 24
_BARS: Final = 196
_FIGURES: Final = 74
"""The width of the number at the end of the longest bar."""

_FLOOR: Final = "bare sockets"
_ONE: Final = ", 1 server"


PUBLISHED: Final = Path(__file__).parents[1] / "docs" / "figures" / "benchmarks.json"
"""All figures of the run that the documentation shows."""


class Row(NamedTuple):
    """A figure; see `bench.measure.Figure`."""

    bench: str
    what: str
    unit: str
    ours: float
    floor: float | None


def rows_of(text: str) -> tuple[dict[str, str], list[Row]]:
    """Return the facts about the machine, and the figures, of a run's JSON."""
    content = json.loads(text)
    return content["machine"], [Row(*(figure[name] for name in Row._fields)) for figure in content["figures"]]


def plots(machine: Mapping[str, str], rows: Sequence[Row]) -> dict[str, Figure]:
    """Return the plots by file name, except those for which there are no figures."""
    table = {(row.bench, row.what): row for row in rows}
    python = machine["Python"].partition(" ")[0]
    subtitle = (
        f"client and servers on one machine, {machine['cores']} cores, {machine['system']}, Python {python}, "
        f"{machine['server']}, {machine['date']}"
    )
    drawn = {name: draw(table, subtitle) for name, draw in _PLOTS.items()}
    return {f"bench-{name}": figure for name, figure in drawn.items() if figure is not None}


_Table = Mapping[tuple[str, str], Row]


class _Entry(NamedTuple):
    """A line of a plot: its label, and a value or None for each panel."""

    label: str
    values: Sequence[float | None]
    colour: Colour = "muted"


def _colour(name: str) -> Colour:
    return "accent" if name.startswith(("redsync", "lock", "fair")) else "good" if name == _FLOOR else "muted"


def _figure(lines: int, title: str, subtitle: str, more: int = 0) -> Figure:
    figure = Figure(_WIDTH, 112 + lines * _STEP + more, title)
    figure.words(24, 32, title, bold=True, size=16)
    figure.words(24, 54, subtitle, colour="muted", size=12)
    return figure


def _panels(figure: Figure, top: int, entries: Sequence[_Entry], titles: Sequence[str], units: Sequence[str]) -> None:
    """Draw a panel of bars for each title, side by side, with one column of labels."""
    for number, entry in enumerate(entries):
        y = top + 22 + number * _STEP
        figure.words(_LABELS, y + 13, entry.label, bold=entry.colour == "accent", size=13)
    room = (_WIDTH - 24 - _BARS) / len(titles)
    for panel, (title, unit) in enumerate(zip(titles, units, strict=True)):
        left = _BARS + panel * room
        figure.words(left, top + 8, title, colour="muted", size=12)
        largest = max((entry.values[panel] or 0.0 for entry in entries), default=0.0) or 1.0
        for number, entry in enumerate(entries):
            y, value = top + 22 + number * _STEP, entry.values[panel]
            if value is not None:
                length = max(value / largest * (room - _FIGURES), 1.0)
                figure.box(left, y, round(length, 1), 16, colour=entry.colour, radius=2)
                figure.words(round(left + length + 6, 1), y + 13, f"{_short(value, largest)} {unit}".strip(), size=12)


def _short(value: float, largest: float) -> str:
    """Return a value with as many decimals as the other small values of its panel have."""
    if value >= 100 or value == 0 or (value >= 10 and value == int(value)):
        return f"{value:,.0f}"
    if largest >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 0.095 else f"{value:.3f}"


def _names(table: _Table, bench: str, ending: str) -> list[str]:
    return [what.removesuffix(ending) for each, what in table if each == bench and what.endswith(ending)]


def _pairs(table: _Table, subtitle: str) -> Figure | None:
    """Plot how long acquire and release take, next to other libraries."""
    names = [name for name in _names(table, "peers", ": p50") if ", 1 node " not in name]
    five, one = ([name for name in names if name.endswith(_ONE) == alone] for alone in (False, True))
    groups = [_beside(table, "peers", group) for group in (five, one) if group]
    groups = groups or [_beside(table, "pairs", [""])]
    if not groups[0]:
        return None
    titles, units = ("p50 of a pair", "CPU time of the client per pair"), ("us", "us")
    figure = _figure(sum(map(len, groups)), "Acquire and release a free lock", subtitle, 40 * (len(groups) - 1))
    top = 84
    for number, entries in enumerate(groups):
        where = "one server" if number else "five servers"
        _panels(figure, top, entries, [f"{where}: {title}" for title in titles], units)
        top += len(entries) * _STEP + 40
    return figure


def _beside(table: _Table, bench: str, names: Sequence[str]) -> list[_Entry]:
    """Return entries for the floor and these names, the fastest first."""
    entries = []
    for name in names:
        prefix = f"{name}: " if name else ""
        rows = [table.get((bench, prefix + what)) for what in ("p50", "client CPU")]
        label = name.removesuffix(_ONE) or "redsync"
        entries.append(_Entry(label, [row and row.ours for row in rows], _colour(label)))
        if len(entries) == 1:
            entries.append(_Entry(_FLOOR, [row and row.floor for row in rows], _colour(_FLOOR)))
    return sorted((entry for entry in entries if entry.values[0]), key=lambda entry: entry.values[0] or 0.0)


def _faults(table: _Table, subtitle: str) -> Figure | None:
    """Plot the latency with all nodes well, one dead, and one hung, on a logarithmic scale."""
    lines = _in_trouble(table)
    if not lines:
        return None
    figure = _figure(len(lines), "With one of five nodes dead, or hung", f"p50 of a pair; {subtitle}", 44)
    left, right, top = _BARS, 640, 98
    values = [value for _, each in lines for value in each if value]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))

    def at(value: float) -> float:
        return round(left + (math.log10(value) - low) / (high - low) * (right - left), 1)

    bottom = top + len(lines) * _STEP
    for power in range(low, high + 1):
        x = at(10.0**power)
        figure.line((x, top - 12), (x, bottom), colour="paper")
        figure.words(x, bottom + 16, _told_us(10.0**power), colour="muted", anchor="middle", size=11)
    for number, (name, latencies) in enumerate(lines):
        y = top + number * _STEP
        figure.words(_LABELS, y + 4, name, bold=name.startswith("redsync"), size=13)
        present = [at(value) for value in latencies if value]
        figure.line((min(present), y), (max(present), y), width=2)
        for value, (_, colour), radius in zip(latencies, _STATES, _RADII, strict=True):
            if value:
                figure.dot(at(value), y, colour=colour, radius=radius)
        if missing := [state for value, (state, _) in zip(latencies, _STATES, strict=True) if value == 0.0]:
            figure.cross(right + 24, y, arm=4)
            figure.words(right + 36, y + 4, f"no lock: {', '.join(missing)}", colour="bad", size=12)
    x = left
    for (state, colour), radius in zip(_STATES, _RADII, strict=True):
        figure.dot(x + 5, bottom + 36, colour=colour, radius=radius)
        figure.words(x + 16, bottom + 40, state, colour="muted", size=12)
        x += 110
    return figure


_STATES: Final[tuple[tuple[str, Colour], ...]] = (("all well", "good"), ("one dead", "warn"), ("one hung", "bad"))
_RADII: Final = (7, 5, 3)
"""The radii of the points; later points are drawn on top of earlier ones."""


def _in_trouble(table: _Table) -> list[tuple[str, list[float | None]]]:
    """Return the median latencies of each library in the three states: 0 if it got no lock, None if not measured."""

    def look(bench: str, what: str, *, floor: bool = False) -> float | None:
        row = table.get((bench, what))
        return None if row is None else row.floor if floor else row.ours

    three = (("pairs", "p50"), ("down", "1 node down: p50"), ("hung", "1 node hung: p50"))
    lines: list[tuple[str, list[float | None]]] = [
        (_FLOOR, [look(*each, floor=True) for each in three]),
        ("redsync", [look(*each) for each in three]),
    ]
    for name in _names(table, "peers", ", 1 node down: granted"):
        states = ("", ", 1 node down", ", 1 node hung")
        if name != "redsync":
            lines.append((name, [look("peers", f"{name}{state}: p50") for state in states]))
            for place, state in enumerate(states):
                if look("peers", f"{name}{state}: granted") == 0.0:
                    lines[-1][1][place] = 0.0
    return [(name, values) for name, values in lines if values[0] and any(value is not None for value in values[1:])]


def _told_us(microseconds: float) -> str:
    if microseconds >= 1e6:
        return f"{microseconds / 1e6:,g} s"
    return f"{microseconds / 1e3:,g} ms" if microseconds >= 1e3 else f"{microseconds:g} us"


def _contention(table: _Table, subtitle: str) -> Figure | None:
    """Plot one lock that eight processes want: throughput, hand-overs and waits."""
    entries, whats = [], ("acquired / ideal", "handed to another / ideal", "wait p99")
    for name in _names(table, "contended", f", 8 x 1: {whats[0]}"):
        if "lease" not in name:
            rows = [table.get(("contended", f"{name}, 8 x 1: {what}")) for what in whats]
            label = {"lock": "redsync lock", "fair": "redsync fair lock"}.get(name, name)
            entries.append(_Entry(label, [row and row.ours for row in rows], _colour(label)))
    if not entries:
        return None
    figure = _figure(len(entries), "Eight processes want one lock, and hold it for 2 ms", subtitle)
    titles = ("acquired, of what is possible", "handed to another process", "p99 of the wait")
    shown = [
        entry._replace(
            values=[value if panel == 2 else value and value * 100 for panel, value in enumerate(entry.values)]
        )
        for entry in entries
    ]
    _panels(figure, 84, shown, titles, ("%", "%", "ms"))
    return figure


_CPU: Final = " held: CPU, lease 30 s"
"""A quick run scales its figure to this lease."""


def _held(table: _Table, subtitle: str) -> Figure | None:
    """Plot the cost of holding many locks."""
    entries = []
    for what, row in ((what, row) for (bench, what), row in table.items() if bench == "held" and _CPU in what):
        count = what.partition(" ")[0]
        commands = table.get(("held", f"{count} held: commands per node, period"))
        entries.append(_Entry(f"{count}: redsync", [row.ours, commands and commands.ours], "accent"))
        entries.append(_Entry(f"{count}: {_FLOOR}", [row.floor, commands and commands.floor], "good"))
    if not entries:
        return None
    figure = _figure(len(entries), "Locks that are held, and renewed by the watchdog, lease 30 s", subtitle)
    _panels(figure, 84, entries, ("share of a core", "commands to each node in 10 s"), ("%", ""))
    return figure


_PLOTS: Final[dict[str, Callable[[_Table, str], Figure | None]]] = {
    "pairs": _pairs,
    "faults": _faults,
    "contention": _contention,
    "held": _held,
}
