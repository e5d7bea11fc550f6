"""Draw the dashboard with real data: `python tools/dashboard_picture.py`; `--check` reports a stale picture.

With `--record`, real clients work on three real nodes for two minutes, while nodes are killed, restarted and stopped.
The program scrapes their metrics and those of `redsync exporter` over HTTP every two seconds, and evaluates the panels'
own expressions over these scrapes. It stores the values in a file, and always draws the picture from that file.
"""

from __future__ import annotations

import json
import math
import re
import sys
import threading
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeAlias

from dashboard import ROWS, Panel

ROOT: Final = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from bench.drawing import Colour, Figure  # noqa: E402  (of this checkout)

RUN: Final = ROOT / "docs" / "operate" / "dashboard-run.json"
PICTURE: Final = ROOT / "docs" / "figures" / "dashboard.svg"

Series: TypeAlias = dict[tuple[tuple[str, str], ...], float]
Scrape: TypeAlias = tuple[float, dict[str, Series]]
"""The time in seconds, and the values by metric and labels."""

_SECONDS, _EVERY, _WINDOW = 120.0, 2.0, 10.0
_DIGITS = 3


# Evaluating the expressions.


def evaluate(expression: str, scrapes: list[Scrape]) -> Series:
    """Return the values of an expression at the last of these scrapes, by labels."""
    if found := re.fullmatch(r"histogram_quantile\(([\d.]+), (.*)\)", expression):
        return _quantiles(float(found[1]), evaluate(found[2], scrapes))
    if " / " in expression:
        over, under = (evaluate(part, scrapes) for part in expression.split(" / "))
        return {labels: value / under[labels] for labels, value in over.items() if under.get(labels)}
    found = re.fullmatch(r"(sum|max) by \(([^)]*)\) \((.*)\)", expression)
    if found is None:
        raise ValueError(f"this program can't evaluate {expression}")
    kept = found[2].split(", ")
    values: defaultdict[tuple[tuple[str, str], ...], list[float]] = defaultdict(list)
    for labels, value in _select(found[3], scrapes).items():
        values[tuple(pair for pair in labels if pair[0] in kept)].append(value)
    return {labels: sum(each) if found[1] == "sum" else max(each) for labels, each in values.items()}


def _select(selector: str, scrapes: list[Scrape]) -> Series:
    """Return the present values of a metric, or their growth per second."""
    name = re.search(r"redsync_\w+", selector)
    if name is None:
        raise ValueError(f"this program can't evaluate {selector}")
    now, last = scrapes[-1]
    present = last.get(name[0], {})
    if not selector.startswith("rate("):
        return present
    began, first = next(each for each in scrapes if each[0] >= now - _WINDOW)
    before = first.get(name[0], {})
    return (
        {labels: (value - before[labels]) / (now - began) for labels, value in present.items() if labels in before}
        if now > began
        else {}
    )


def _quantiles(part: float, buckets: Series) -> Series:
    """Return a quantile of each histogram, linear within a bucket, as Prometheus computes it."""
    histograms: defaultdict[tuple[tuple[str, str], ...], list[tuple[float, float]]] = defaultdict(list)
    for labels, value in buckets.items():
        bound = math.inf if dict(labels)["le"] == "+Inf" else float(dict(labels)["le"])
        histograms[tuple(pair for pair in labels if pair[0] != "le")].append((bound, value))
    result = {}
    for labels, counts in histograms.items():
        counts.sort()
        rank = part * counts[-1][1]
        if not rank:
            continue
        at = next(number for number, (_, count) in enumerate(counts) if count >= rank)
        low, below = counts[at - 1] if at else (0.0, 0.0)
        high, count = counts[at]
        result[labels] = low if high == math.inf else low + (high - low) * (rank - below) / (count - below)
    return result


# Recording.


def record() -> dict[str, Any]:
    """Run the clients; return the values of all panels at each scrape."""
    from dashboard_run import run

    scrapes: list[Scrape] = []
    lines: dict[str, dict[str, list[float | None]]] = defaultdict(dict)
    times: list[float] = []
    for scrape in _scrapes(run):
        scrapes.append(scrape)
        times.append(round(scrape[0], 1))
        for expression, _ in (line for row in ROWS.values() for panel in row for line in panel.lines):
            for labels, value in evaluate(expression, scrapes).items():
                told = ",".join("=".join(pair) for pair in labels)
                line = lines[expression].setdefault(told, [None] * (len(times) - 1))
                line.append(float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None)
        for each in (each for by_labels in lines.values() for each in by_labels.values()):
            each.extend([None] * (len(times) - len(each)))
    return {"seconds": times, "lines": lines}


def _scrapes(run: Callable[[threading.Event], Any]) -> Iterator[Scrape]:
    from prometheus_client.parser import text_string_to_metric_families

    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy does not reach this machine
    over = threading.Event()
    with run(over) as (urls, renamed):
        began = time.monotonic()
        while (now := time.monotonic() - began) < _SECONDS:
            found: defaultdict[str, Series] = defaultdict(dict)
            for url in urls:
                with direct.open(url, timeout=20) as reply:
                    text = reply.read().decode()
                for address, name in renamed.items():
                    text = text.replace(address, name)
                for family in text_string_to_metric_families(text):
                    for sample in family.samples:
                        found[sample.name][tuple(sorted(sample.labels.items()))] = sample.value
            yield now, found
            time.sleep(max(_EVERY - (time.monotonic() - began - now), 0.0))
        over.set()


# Drawing.

_COLUMN, _PANEL, _GAP, _HEAD = 400, 190, 14, 34
_COLOURS: Final[tuple[Colour, ...]] = ("accent", "good", "warn", "bad", "muted", "ink")
_MOST_NAMED = 6
_UNITS: Final = {"s": "s", "ops": "/s", "short": "", "percentunit": "%"}


def picture(kept: dict[str, Any]) -> Figure:
    """Return the dashboard with these values."""
    rows = [(question, [row[begin : begin + 3] for begin in range(0, len(row), 3)]) for question, row in ROWS.items()]
    height = sum(_HEAD + len(lines) * (_PANEL + _GAP) for _, lines in rows) + 2 * _GAP
    figure = Figure(3 * _COLUMN + 4 * _GAP, height, "The dashboard, with the values of a run of two minutes")
    top = _GAP
    for question, lines in rows:
        figure.words(_GAP, top + 22, question, bold=True, size=15)
        top += _HEAD
        for line in lines:
            for column, panel in enumerate(line):
                _draw(figure, panel, kept, _GAP + column * (_COLUMN + _GAP), top)
            top += _PANEL + _GAP
    return figure


def _draw(figure: Figure, panel: Panel, kept: dict[str, Any], left: float, top: float) -> None:
    figure.box(left, top, _COLUMN, _PANEL)
    figure.words(left + 10, top + 19, panel.title, size=13, bold=True)
    times, lines = kept["seconds"], dict(_named(panel, kept["lines"]))
    # A line that is always 0 would only clutter the panel.
    shown = {name: line for name, line in sorted(lines.items()) if any(line)} or dict(list(lines.items())[:1])
    most = _ceiling(max((value for line in shown.values() for value in line if value is not None), default=0.0))
    x0, y0, width, height = left + 46, top + 32, _COLUMN - 60, _PANEL - 88

    def at(number: int, value: float) -> tuple[float, float]:
        return round(x0 + width * times[number] / _SECONDS, 1), round(y0 + height * (1 - value / most), 1)

    for part in (0.0, 0.5, 1.0):
        y = y0 + height * (1 - part)
        figure.line((x0, y), (x0 + width, y), width=0.4)
        figure.words(x0 - 6, y + 4, _told(part * most, panel.unit), colour="muted", anchor="end", size=10)
    for second in range(0, int(_SECONDS) + 1, 30):
        x = x0 + width * second / _SECONDS
        figure.words(x, y0 + height + 14, f"{second} s", colour="muted", anchor="middle", size=10)
    for number, (name, line) in enumerate(shown.items()):
        colour, dashed = _COLOURS[number % len(_COLOURS)], number >= len(_COLOURS)
        for begin, end in _runs(line):
            points = [at(step, value) for step, value in enumerate(line[:end]) if step >= begin and value is not None]
            points = points if len(points) > 1 else [points[0], (points[0][0] + 2, points[0][1])]
            figure.line(*points, colour=colour, width=1.4, dashed=dashed)
        if number < _MOST_NAMED:
            x, y = left + 12 + number % 3 * (_COLUMN - 16) / 3, top + _PANEL - 26 + number // 3 * 16
            figure.line((x, y - 4), (x + 12, y - 4), colour=colour, width=2.5, dashed=dashed)
            figure.words(x + 16, y, name if len(name) < 20 else f"{name[:18]}…", size=10)
    if not shown:
        figure.words(x0 + width / 2, y0 + height / 2, "no data", colour="muted", anchor="middle", size=12)


def _named(panel: Panel, lines: dict[str, dict[str, list[float | None]]]) -> Iterator[tuple[str, list[float | None]]]:
    """Yield the lines of a panel, each with its legend."""
    for expression, legend in panel.lines:
        for told, values in lines.get(expression, {}).items():
            name = legend
            for label, value in (pair.split("=", 1) for pair in told.split(",") if pair):
                name = name.replace(f"{{{{{label}}}}}", value)
            yield name, values


def _runs(line: list[float | None]) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each run of values."""
    begin = None
    for number, value in enumerate([*line, None]):
        if value is not None and begin is None:
            begin = number
        elif value is None and begin is not None:
            yield begin, number
            begin = None


def _ceiling(most: float) -> float:
    """Return a round number that is not below `most`."""
    if most <= 0:
        return 1.0
    unit = 10.0 ** math.floor(math.log10(most))
    return next(unit * factor for factor in (1, 2, 4, 5, 10) if unit * factor >= most * 0.999)


def _told(value: float, unit: str) -> str:
    if unit == "s" and 0 < value < 0.1:
        return f"{value * 1000:g} ms"
    return f"{value * 100:.3g} %" if unit == "percentunit" else f"{value:.3g}{' ' * (unit == 's')}{_UNITS[unit]}"


def main() -> int:
    """Record, draw or check; return the exit status."""
    if "--record" in sys.argv[1:]:
        RUN.write_text(json.dumps(record()).replace('"], "', '"],\n"').replace('], "', '],\n"') + "\n")
    text = picture(json.loads(RUN.read_text())).svg()
    if "--check" not in sys.argv[1:]:
        PICTURE.write_text(text, encoding="utf-8")
    elif not PICTURE.exists() or PICTURE.read_text(encoding="utf-8") != text:
        print(f"{PICTURE.name} is out of date: run `make docs`")  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
