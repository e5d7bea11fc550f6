"""The picture of a demo run: holds as bars, outages of nodes as bands, lost holds as crosses, failures as points.

The upper part shows the whole run: the nodes, then a lane for each lock. The lower part is a close-up with a row for
each worker, where the bars of each lock show that no two overlap. Bars are in ms from the start of the run, exact to
the microsecond.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

from redsync.cli.demo_faults import Outage
from redsync.cli.demo_report import Findings, Report, plural
from redsync.cli.drawing import Bar, Colour, Figure
from redsync.cli.exits import UNWRITABLE, SetupError
from redsync.testing.harness.holds import Hold

__all__ = ["PictureFile", "Run", "draw"]

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

_FAILED: Final = frozenset({"busy", "no quorum", "unsure"})


@dataclass(frozen=True)
class Run:
    """The run that the picture shows.

    Attributes:
        report: The verdict on the run, and its records.
        begin: The start of the run, in ns on the journals' clock.
        outages: The outages of nodes.
    """

    report: Report
    begin: int
    outages: Sequence[Outage]

    @property
    def findings(self) -> Findings:
        """The records of the run."""
        return self.report.findings

    @property
    def lanes(self) -> list[tuple[str, Sequence[Hold]]]:
        """Each lock with its holds."""
        return list(zip(self.findings.names, self.report.holds, strict=True))

    @property
    def workers(self) -> int:
        """The number of workers."""
        return self.findings.processes * self.findings.threads

    def ms(self, instant: int) -> float:
        """Return an instant in ms from the start of the run."""
        return (instant - self.begin) / 1e6

    def bars(self, holds: Sequence[Hold], *, by_worker: bool = False) -> list[Bar]:
        """Return the holds as bars, in one row or in the row of their worker."""
        return [
            Bar(self.ms(hold.granted), (hold.believed_until - hold.granted) / 1e6, hold.worker if by_worker else 0)
            for hold in holds
        ]

    @property
    def span(self) -> tuple[float, float]:
        """The begin and the end of the run, in ms."""
        ends = [self.ms(hold.believed_until) for _, holds in self.lanes for hold in holds]
        return 0.0, max([self.findings.seconds * 1000, *ends])

    @property
    def moment(self) -> tuple[float, float]:
        """The span of the close-up, in ms."""
        first = min((self.ms(outage.begin) for outage in self.outages), default=self.findings.seconds * 500)
        begin = max(first - _BEFORE_MS, 0.0)
        return begin, begin + _CLOSE_MS


def draw(run: Run) -> str:
    """Return the picture as the text of an SVG file."""
    findings, verdict = run.findings, run.report.verdict()
    rows = min(max(run.workers * _WORKER, _LANE), _TALLEST)
    top = 82
    lanes = top + findings.nodes * _NODE + 4
    axis = lanes + len(run.lanes) * (_LANE + 6)
    close = axis + 88
    end = close + len(run.lanes) * (rows + 8)
    who = f"{plural(run.workers, 'worker')} in {plural(findings.processes, 'process')}"
    title = f"redsync demo: {who} compete for {plural(len(run.lanes), 'lock')}"
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
    for node in range(run.findings.nodes):
        y = top + node * _NODE
        figure.words(24, y + 5, f"node {node + 1}", size=12)
        figure.line((_LEFT, y), (_RIGHT, y), colour="muted", width=1)
    for outage in run.outages:
        begin, end = run.ms(outage.begin), span[1] if outage.end is None else run.ms(outage.end)
        y = top + outage.node * _NODE
        colour: Colour = "bad" if outage.what == "killed" else "warn"
        figure.strip(_LEFT, y - 6, _SPAN, 12, [Bar(begin, end - begin)], span=span, colour=colour)
        for instant in (begin, end):
            figure.line((_at(instant, span), y + 6), (_at(instant, span), bottom), width=1, colour=colour, dashed=True)
        figure.words(_at((begin + end) / 2, span), y + 4, outage.what, colour="ground", anchor="middle", size=11)


def _draw_lane(figure: Figure, run: Run, name: str, holds: Sequence[Hold], y: int) -> None:
    figure.words(24, y + _LANE / 2 + 4, name, size=12)
    figure.box(_LEFT, y, _SPAN, _LANE, radius=0)
    figure.strip(_LEFT, y, _SPAN, _LANE, run.bars(holds), span=run.span)
    wrong = [hold for hold in holds if hold.key in run.report.overlapping]
    figure.strip(_LEFT, y, _SPAN, _LANE, run.bars(wrong), span=run.span, colour="bad")


def _draw_trouble(figure: Figure, run: Run, top: int) -> None:
    """Mark lost holds by crosses and failed attempts by points, in the lanes of their locks."""
    middles = {name: top + number * (_LANE + 6) + _LANE / 2 for number, (name, _) in enumerate(run.lanes)}
    for line in run.findings.lines:
        if line["event"] in _FAILED and line.get("name") in middles:
            figure.dot(_at(run.ms(line["at"]), run.span), middles[line["name"]] + _LANE / 2, colour="warn", radius=3)
    for _, holds in run.lanes:
        for hold in holds:
            if (instant := _lost_at(hold)) is not None:
                figure.cross(_at(run.ms(instant), run.span), middles[hold.name])


def _lost_at(hold: Hold) -> int | None:
    """Return when a hold was lost, as far as its owner knows; None if it was released."""
    if not hold.told and (hold.gone is None or not hold.gone.startswith("lost")):
        return None
    return min((int(line["at"]) for line in hold.told), default=hold.believed_until)


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
        shown = [hold for hold in holds if run.ms(hold.granted) < end and run.ms(hold.believed_until) > begin]
        for process in range(run.findings.processes):
            mine = [hold for hold in shown if hold.worker // run.findings.threads == process]
            bars, colour = run.bars(mine, by_worker=True), _COLOURS[process % len(_COLOURS)]
            figure.strip(_LEFT, y, _SPAN, height, bars, span=span, rows=workers, colour=colour)
        wrong = run.bars([hold for hold in shown if hold.key in run.report.overlapping], by_worker=True)
        figure.strip(_LEFT, y, _SPAN, height, wrong, span=span, rows=workers, colour="bad")
    for outage in run.outages:
        for instant in (outage.begin, outage.end):
            if instant is not None and span[0] <= run.ms(instant) <= span[1]:
                x = _at(run.ms(instant), span)
                figure.line((x, top - 4), (x, top + len(run.lanes) * (height + 8)), width=1, colour="bad", dashed=True)
                what = f"node {outage.node + 1} {outage.what if instant == outage.begin else 'is back'}"
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
    for process in range(min(run.findings.processes, len(_COLOURS))):
        figure.box(x, y - 9, 14, 10, colour=_COLOURS[process], radius=0)
        figure.words(x + 20, y, f"process {process + 1}", colour="muted", size=12)
        x += 96
    if any(_lost_at(hold) is not None for _, holds in run.lanes for hold in holds):
        figure.cross(x + 6, y - 4, arm=4)
        figure.words(x + 18, y, "lost", colour="muted", size=12)
        x += 62
    if any(line["event"] in _FAILED for line in run.findings.lines):
        figure.dot(x + 6, y - 4, colour="warn", radius=3)
        figure.words(x + 18, y, "an attempt failed", colour="muted", size=12)
        x += 132
    if run.report.overlaps:
        figure.box(x, y - 9, 14, 10, colour="bad", radius=0)
        figure.words(x + 20, y, "two held it at once", colour="bad", size=12)


class PictureFile:
    """The file for the picture, if there is a path; opened before the run, so that a wrong path fails at once."""

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._is_new = False
        self._is_written = False

    def __enter__(self) -> Self:
        if self._path is not None:
            self._is_new = not os.path.lexists(self._path)
            self._put("", "a")
        return self

    def __exit__(self, *error: object) -> None:
        if self._path is not None and self._is_new and not self._is_written:
            with contextlib.suppress(OSError):
                os.unlink(self._path)

    def write(self, run: Run) -> bool:
        """Draw the run into the file, if a path is set; return whether it is.

        Raises:
            SetupError: The file can't be written.
        """
        if self._path is None:
            return False
        self._put(draw(run), "w")
        self._is_written = True
        return True

    def _put(self, text: str, mode: str) -> None:
        assert self._path is not None
        try:
            with open(self._path, mode, encoding="utf-8") as file:
                file.write(text)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise SetupError(f"can't write the picture to {self._path!r}: {reason}", UNWRITABLE) from error
