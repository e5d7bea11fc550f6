"""Run `redsync demo`, and draw the run: `python tools/demo_picture.py run.svg`, with `--seconds` and `--seed`.

Holds are bars, outages of nodes are bands, lost holds crosses, failures points. The upper part shows the whole run: the
nodes, then a lane for each lock. The lower part is a close-up with a row for each worker, where the bars of each lock
show that no two overlap. Bars are in ms from the start of the run, exact to the microsecond.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.drawing import Bar, Colour, Figure
from redsync.cli import demo
from redsync.cli.demo import NODES, PROCESSES, THREADS, Attempt

_WIDTH: Final = 860
_LEFT: Final = 92
_RIGHT: Final = 836
_SPAN: Final = _RIGHT - _LEFT
_NODE: Final = 18
_LANE: Final = 26
_WORKER: Final = 4
_TALLEST: Final = 160

_CLOSE_MS: Final = 400.0
"""The length of the close-up."""

_BEFORE_MS: Final = 100.0
"""The part of the close-up before the first fault."""

_COLOURS: Final[tuple[Colour, ...]] = ("accent", "good", "warn", "cool")
"""The colours of the processes, in order; they repeat."""


class Run:
    """A run of the demo, in the units of the picture."""

    def __init__(
        self, report: demo.Report, processes: int = PROCESSES, threads: int = THREADS, nodes: int = NODES
    ) -> None:
        self.report, self.outages = report, report.outages
        self.processes, self.threads, self.nodes = processes, threads, nodes
        self._begin = report.begin

    @property
    def lanes(self) -> list[tuple[str, Sequence[Attempt]]]:
        """Each lock with its holds."""
        return [(f"lock:{number}", holds) for number, holds in enumerate(self.report.holds, 1)]

    @property
    def workers(self) -> int:
        """The number of workers."""
        return self.processes * self.threads

    @property
    def failed(self) -> list[Attempt]:
        """The attempts that failed."""
        return [each for each in self.report.attempts if not each.granted]

    def ms(self, instant: int) -> float:
        """Return an instant in ms from the start of the run."""
        return (instant - self._begin) / 1e6

    def bars(self, holds: Sequence[Attempt], *, by_worker: bool = False) -> list[Bar]:
        """Return the holds as bars, in one row or in the row of their worker."""
        return [
            Bar(self.ms(hold.granted), (hold.ended - hold.granted) / 1e6, hold.worker if by_worker else 0)
            for hold in holds
        ]

    def wrong(self, holds: Sequence[Attempt], *, by_worker: bool = False) -> list[Bar]:
        """Return the bars of those holds that overlap with another one."""
        wrong = {(hold.worker, hold.granted) for pair in self.report.overlaps for hold in pair}
        return self.bars([hold for hold in holds if (hold.worker, hold.granted) in wrong], by_worker=by_worker)

    @property
    def span(self) -> tuple[float, float]:
        """The begin and the end of the run, in ms."""
        ends = [self.ms(hold.ended) for _, holds in self.lanes for hold in holds]
        return 0.0, max([self.report.seconds * 1000, *ends])

    @property
    def moment(self) -> tuple[float, float]:
        """The span of the close-up, in ms."""
        first = min((self.ms(outage.begin) for outage in self.outages.values()), default=self.report.seconds * 500)
        begin = max(first - _BEFORE_MS, 0.0)
        return begin, begin + _CLOSE_MS


def _plural(number: str, noun: str) -> str:
    return f"{number} {noun}{'' if number == '1' else 's'}"


def draw(run: Run) -> str:
    """Return the picture as the text of an SVG file."""
    nouns = ("acquisition", "overlap", "lost update", "lost hold", "zombie key")
    lost = sum(each.outcome == "lost" for each in run.report.attempts)
    figures = run.report.figures | {"lost holds": f"{lost:,}"}
    verdict = ", ".join(_plural(figures[f"{noun}s"], noun) for noun in nouns)
    rows = min(max(run.workers * _WORKER, _LANE), _TALLEST)
    top = 82
    lanes = top + run.nodes * _NODE + 4
    axis = lanes + len(run.lanes) * (_LANE + 6)
    close = axis + 88
    end = close + len(run.lanes) * (rows + 8)
    who = f"{run.workers} workers in {run.processes} processes"
    title = f"redsync demo: {who} compete for {len(run.lanes)} locks"
    figure = Figure(_WIDTH, end + 66, f"{title}: {verdict}")
    figure.words(24, 32, title, bold=True, size=16)
    figure.words(24, 54, verdict, colour="bad" if run.report.overlaps else "muted", size=13)
    for number, (name, holds) in enumerate(run.lanes):
        _draw_lane(figure, run, name, holds, lanes + number * (_LANE + 6))
    _draw_nodes(figure, run, top, axis - 6)
    _draw_axis(figure, run.span, axis, 1000.0, "s")
    _draw_trouble(figure, run, lanes)
    _draw_beam(figure, run, axis + 24, close - 22)
    _draw_moment(figure, run, close, rows)
    _draw_axis(figure, run.moment, end, 1.0, "ms")
    _draw_legend(figure, run, end + 46)
    return figure.svg()


def _at(instant: float, span: tuple[float, float]) -> float:
    return _LEFT + (instant - span[0]) / (span[1] - span[0]) * _SPAN


def _draw_nodes(figure: Figure, run: Run, top: int, bottom: int) -> None:
    span = run.span
    for node in range(run.nodes):
        y = top + node * _NODE
        figure.words(24, y + 5, f"node {node + 1}", size=12)
        figure.line((_LEFT, y), (_RIGHT, y), colour="muted", width=1)
    for node, outage in run.outages.items():
        begin, end = run.ms(outage.begin), span[1] if outage.end is None else run.ms(outage.end)
        y = top + node * _NODE
        colour: Colour = "bad" if outage.what == "killed" else "warn"
        figure.strip(_LEFT, y - 6, _SPAN, 12, [Bar(begin, end - begin)], span=span, colour=colour)
        for instant in (begin, end):
            figure.line((_at(instant, span), y + 6), (_at(instant, span), bottom), width=1, colour=colour, dashed=True)
        figure.words(_at((begin + end) / 2, span), y + 4, outage.what, colour="ground", anchor="middle", size=11)


def _draw_lane(figure: Figure, run: Run, name: str, holds: Sequence[Attempt], y: int) -> None:
    figure.words(24, y + _LANE / 2 + 4, name, size=12)
    figure.box(_LEFT, y, _SPAN, _LANE, radius=0)
    figure.strip(_LEFT, y, _SPAN, _LANE, run.bars(holds), span=run.span)
    figure.strip(_LEFT, y, _SPAN, _LANE, run.wrong(holds), span=run.span, colour="bad")


def _draw_trouble(figure: Figure, run: Run, top: int) -> None:
    """Mark lost holds by crosses and failed attempts by points, in the lanes of their locks."""
    middles = [top + number * (_LANE + 6) + _LANE / 2 for number in range(len(run.lanes))]
    for each in run.failed:
        figure.dot(_at(run.ms(each.ended), run.span), middles[each.lock] + _LANE / 2, colour="warn", radius=3)
    for each in run.report.attempts:
        if each.outcome == "lost":
            figure.cross(_at(run.ms(each.ended), run.span), middles[each.lock])


def _draw_beam(figure: Figure, run: Run, top: int, bottom: int) -> None:
    """Draw the area that leads from a moment of the run to the close-up."""
    begin, end = (_at(min(instant, run.span[1]), run.span) for instant in run.moment)
    figure.area(
        (begin, top), (end, top), (_RIGHT, bottom - 22), (_RIGHT, bottom), (_LEFT, bottom), (_LEFT, bottom - 22)
    )
    text = f"{_CLOSE_MS:g} ms of it: each bar is a hold, each row a worker, each colour a process"
    figure.words((_LEFT + _RIGHT) / 2, bottom - 6, text, anchor="middle", size=12)


def _draw_moment(figure: Figure, run: Run, top: int, height: int) -> None:
    span, workers = run.moment, run.workers
    begin, end = span
    for number, (name, holds) in enumerate(run.lanes):
        y = top + number * (height + 8)
        figure.words(24, y + height / 2 + 4, name, size=12)
        figure.box(_LEFT, y, _SPAN, height, radius=0)
        shown = [hold for hold in holds if run.ms(hold.granted) < end and run.ms(hold.ended) > begin]
        for process in range(run.processes):
            mine = [hold for hold in shown if hold.worker // run.threads == process]
            bars, colour = run.bars(mine, by_worker=True), _COLOURS[process % len(_COLOURS)]
            figure.strip(_LEFT, y, _SPAN, height, bars, span=span, rows=workers, colour=colour)
        wrong = run.wrong(shown, by_worker=True)
        figure.strip(_LEFT, y, _SPAN, height, wrong, span=span, rows=workers, colour="bad")
    for node, outage in run.outages.items():
        for instant in (outage.begin, outage.end):
            if instant is not None and span[0] <= run.ms(instant) <= span[1]:
                x = _at(run.ms(instant), span)
                figure.line((x, top - 4), (x, top + len(run.lanes) * (height + 8)), width=1, colour="bad", dashed=True)
                what = f"node {node + 1} {outage.what if instant == outage.begin else 'is back'}"
                figure.words(x + 4, top - 6, what, colour="bad", size=11)


def _draw_axis(figure: Figure, span: tuple[float, float], y: int, unit: float, name: str) -> None:
    """Draw a scale with round numbers below the lanes."""
    begin, end = span[0] / unit, span[1] / unit
    step = next(step for step in _STEPS if (end - begin) / step <= 12)
    number = -int(-begin // step)
    while (value := number * step) <= end:
        x = _at(value * unit, span)
        figure.line((x, y), (x, y + 4), width=1)
        figure.words(x, y + 17, f"{value:,g} {name}", colour="muted", anchor="middle", size=11)
        number += 1


_STEPS: Final = [digit * 10.0**power for power in range(6) for digit in (1, 2, 5)]


def _draw_legend(figure: Figure, run: Run, y: int) -> None:
    x = _LEFT
    for process in range(min(run.processes, len(_COLOURS))):
        figure.box(x, y - 9, 14, 10, colour=_COLOURS[process], radius=0)
        figure.words(x + 20, y, f"process {process + 1}", colour="muted", size=12)
        x += 96
    if any(each.outcome == "lost" for each in run.report.attempts):
        figure.cross(x + 6, y - 4, arm=4)
        figure.words(x + 18, y, "lost", colour="muted", size=12)
        x += 62
    if run.failed:
        figure.dot(x + 6, y - 4, colour="warn", radius=3)
        figure.words(x + 18, y, "an attempt failed", colour="muted", size=12)
        x += 132
    if run.report.overlaps:
        figure.box(x, y - 9, 14, 10, colour="bad", radius=0)
        figure.words(x + 20, y, "two held it at once", colour="bad", size=12)


def main() -> None:
    """Run the demo, and write its picture into the file that the command line names."""
    parser = argparse.ArgumentParser(description="Run `redsync demo`, and draw the run.")
    parser.add_argument("file", type=Path, help="the SVG file")
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--seed", type=int)
    options = parser.parse_args()
    options.file.write_text(draw(Run(demo.play(options))))


if __name__ == "__main__":
    main()
