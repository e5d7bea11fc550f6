"""Output of figures: a table for the terminal, one for the documentation, and JSON."""

from __future__ import annotations

import datetime
import json
import os
import platform
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import redis

from bench.measure import Figure
from bench.plots import PUBLISHED, plots, rows_of
from redsync.testing import LocalNodes

DOCUMENT = Path(__file__).parents[1] / "docs" / "benchmarks.md"

_BEGIN, _END = "<!-- table -->", "<!-- /table -->"
_HEAD = ("bench", "what", "unit", "redsync", "floor", "ratio", "target", "verdict")
_NUMBERS = (3, 4, 5)


def describe_machine() -> dict[str, str]:
    """Return the facts about this machine on which the figures depend."""
    with LocalNodes(1) as nodes, redis.Redis.from_url(nodes.urls[0]) as node:
        info = node.info("server")
    version = info.get("valkey_version")
    return {
        "cores": str(os.cpu_count()),
        # The load by other programs: on busy cores, ratios lose their meaning.
        "load before": f"{os.getloadavg()[0]:.1f}",
        "system": f"{platform.system()} {platform.machine()}",
        "Python": f"{platform.python_version()} ({_build()})",
        "server": f"Valkey {version}" if version else f"Redis {info['redis_version']}",
        "redis-py": redis.__version__,
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
    }


def _build() -> str:
    """Return how the interpreter was configured; the client's CPU time depends on it.

    Some distributions optimize without these options; no setting of theirs tells.
    """
    arguments = str(sysconfig.get_config_var("CONFIG_ARGS") or "")
    options = "--enable-optimizations", "--with-lto"
    return "configured " + " and ".join(f"{'with' if each in arguments else 'without'} {each}" for each in options)


def as_text(figures: Sequence[Figure]) -> str:
    """Return the table in aligned columns."""
    rows = [_HEAD, *(_cells(figure) for figure in figures)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEAD))]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if i in _NUMBERS else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def as_markdown(figures: Sequence[Figure], machine: Mapping[str, str]) -> str:
    """Return the machine, the figures that have a target, and those of other libraries, for the documentation."""
    lines = [
        ", ".join(f"{key} {value}" if key != "cores" else f"{value} cores" for key, value in machine.items()) + ":",
        "",
        "| bench | what | redsync | floor | ratio | target |",
        "|---|---|--:|--:|--:|---|",
    ]
    for figure in figures:
        if figure.target and figure.floor is not None:
            bench, what, unit, *numbers, target, verdict = _cells(figure)
            quantity = f"{what}, {unit}" if unit else what
            lines.append("| " + " | ".join((bench, quantity, *numbers, f"{target}: {verdict}")) + " |")
    return "\n".join([*lines, *_alone(figures), *_peers(figures)])


def _alone(figures: Sequence[Figure]) -> list[str]:
    """Return a table of the figures that have a target but no floor: the range, and the highest case."""
    table: dict[tuple[str, str, str], list[Figure]] = {}
    for figure in figures:
        if figure.target and figure.floor is None:
            quantity, unit = figure.what.rpartition(": ")[2], f", {figure.unit}" if figure.unit else ""
            key = figure.bench, quantity + unit, figure.target.removeprefix("redsync ")
            table.setdefault(key, []).append(figure)
    if not table:
        return []
    lines = ["", "| bench | what | target | redsync |", "|---|---|---|---|"]
    for key, cases in table.items():
        low, high = (choose(cases, key=lambda figure: figure.ours) for choose in (min, max))
        beginning = "" if low.ours == high.ours else f"{_number(low.ours)} to "
        missed = sum(not figure.met for figure in cases)
        verdict = f"; {missed} of {len(cases)} MISSED" if missed else ""
        found = f"{beginning}{_number(high.ours)} ({high.what.rpartition(': ')[0]}){verdict}"
        lines.append("| " + " | ".join((*key, found)) + " |")
    return lines


def _peers(figures: Sequence[Figure]) -> list[str]:
    """Return a table with a line for each library, and a column for each state of the nodes."""
    table = {figure.what: figure for figure in figures if figure.bench == "peers"}
    libraries = [what.removesuffix(": p50") for what in table if what.endswith(": p50") and ", 1 node" not in what]
    if not libraries:
        return []
    lines = ["", "| library: p50 of a pair, and its ratio to the floor | healthy | 1 node down | 1 node hung |"]
    lines.append("|---|---|---|---|")
    for library in libraries:
        cells = [library]
        for state in ("", ", 1 node down", ", 1 node hung"):
            granted, p50 = (table.get(f"{library}{state}: {what}") for what in ("granted", "p50"))
            share = f"{_number(granted.ours)} % granted" if granted and granted.ours < 100 else ""
            time = f"{_number(p50.ours)} us, {p50.ratio or 0:.2f} x" if p50 else ""
            cells.append(", ".join(filter(None, (share, time))))
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def as_json(figures: Sequence[Figure], machine: Mapping[str, str]) -> str:
    """Return the machine and all figures as JSON."""
    content = {"machine": machine, "figures": [asdict(figure) | {"verdict": figure.verdict} for figure in figures]}
    return json.dumps(content, indent=1) + "\n"


def write_document(figures: Sequence[Figure], machine: Mapping[str, str]) -> list[Path]:
    """Put the table between its marks in the documentation, all figures next to it, and draw them; return the plots.

    Raises:
        ValueError: The marks are missing.
    """
    before, begin, rest = DOCUMENT.read_text().partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise ValueError(f"{DOCUMENT.name} has no {_BEGIN} ... {_END} for the table")
    DOCUMENT.write_text(f"{before}{begin}\n\n{as_markdown(figures, machine)}\n\n{end}{after}")
    PUBLISHED.write_text(as_json(figures, machine))
    return draw(PUBLISHED.parent, figures, machine)


def draw(folder: Path, figures: Sequence[Figure], machine: Mapping[str, str]) -> list[Path]:
    """Draw the plots of a run into a folder; return their files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for name, figure in plots(*rows_of(as_json(figures, machine))).items():
        files.append(folder / f"{name}.svg")
        files[-1].write_text(figure.svg(), encoding="utf-8")
    return files


def _cells(figure: Figure) -> tuple[str, ...]:
    return (
        figure.bench,
        figure.what,
        figure.unit,
        _number(figure.ours),
        _number(figure.floor),
        "" if figure.ratio is None else f"{figure.ratio:.2f}",
        figure.target,
        figure.verdict,
    )


def _number(value: float | None) -> str:
    if value is None:
        return ""
    if value == int(value) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}" if abs(value) >= 0.1 else f"{value:.3f}"
