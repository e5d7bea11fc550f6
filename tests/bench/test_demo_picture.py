"""The demo's picture: every hold is a bar of exactly its time, every outage a band, and what went wrong is marked."""

import re
from xml.etree import ElementTree as ET

from redsync.cli.demo import Attempt, Outage, Report
from tools.demo_picture import Run, draw

BEGIN = 7_000_000_000_123
MS = 1_000_000
SVG = "{http://www.w3.org/2000/svg}"


def hold(worker, granted, ended, **fields):
    return Attempt(worker, 0, BEGIN, "held", BEGIN + granted, BEGIN + ended, **{"kept": True} | fields)


def run(*attempts, outages=(), seconds=2.0, nodes=3, processes=2, threads=2):
    """Two processes of two threads, two locks; all holds are of the first."""
    report = Report(attempts, [0, 0], [], dict(outages), seconds, BEGIN)
    return Run(report, processes, threads, nodes)


class Picture:
    """The bars of a picture by colour, and its texts."""

    def __init__(self, run):
        self.root = ET.fromstring(draw(run))
        self.bars = [bar for strip in self.root.iter(f"{SVG}svg") for bar in self._bars(strip)]
        self.texts = ["".join(text.itertext()) for text in self.root.iter(f"{SVG}text")]

    def _bars(self, strip):
        if strip is self.root:
            return
        span = tuple(map(float, strip.get("viewBox").split()))
        (path,) = strip
        (colour,) = re.findall(r"l-(\w+)", path.get("class"))
        for begin, row, length in re.findall(r"M(\S+) (\S+)h([^M]+)", path.get("d")):
            yield float(begin), float(length), float(row) - 0.5, colour, span

    def of(self, colour, *, rows=1):
        return [
            (begin, length, row) for begin, length, row, own, span in self.bars if own == colour and span[3] == rows
        ]

    def count(self, tag, name):
        return sum(name in each.get("class", "").split() for each in self.root.iter(f"{SVG}{tag}"))


def test_every_hold_is_a_bar_of_its_time_to_the_microsecond():
    holds = [hold(number % 4, number * 5 * MS + 1_000, number * 5 * MS + 2_345_678) for number in range(300)]
    picture = Picture(run(*holds))
    assert picture.of("accent") == [(number * 5 + 0.001, 2.345, 0) for number in range(300)]


def test_close_up_shows_each_hold_in_the_row_of_its_worker_and_the_colour_of_its_process():
    near = [hold(worker, (1010 + worker * 20) * MS, (1020 + worker * 20) * MS) for worker in range(4)]
    far = [hold(0, 10 * MS, 20 * MS), hold(1, 1900 * MS, 1950 * MS)]
    picture = Picture(run(*near, *far))
    assert picture.of("accent", rows=4) == [(1010, 10, 0), (1030, 10, 1)]
    assert picture.of("good", rows=4) == [(1050, 10, 2), (1070, 10, 3)]
    assert {span[:1] + span[2:3] for *_, span in picture.bars if span[3] == 4} == {(900, 400)}
    assert "process 2" in picture.texts


def test_every_outage_is_a_band_of_its_time():
    outages = {
        0: Outage("killed", BEGIN + 500 * MS, BEGIN + 1000 * MS),
        2: Outage("hung", BEGIN + 800 * MS),  # never mended
    }
    picture = Picture(run(hold(0, 0, MS), outages=outages))
    assert picture.of("bad") == [(500, 500, 0)]
    assert picture.of("warn") == [(800, 1200, 0)]
    assert {"killed", "hung"} <= set(picture.texts)


def test_losses_failures_and_overlaps_are_marked_and_explained():
    holds = [hold(0, 10 * MS, 30 * MS), hold(1, 20 * MS, 40 * MS)]
    holds[1].outcome = "lost"
    holds.append(Attempt(2, 1, BEGIN, "timeout", 0, BEGIN + 70 * MS))
    picture = Picture(run(*holds))
    assert picture.of("bad") == [(10, 20, 0), (20, 20, 0)]
    assert picture.count("path", "l-bad") == 1 + 4  # the strip; a cross in the lane, and one in the legend
    assert picture.count("circle", "warn") == 2
    assert {"lost", "an attempt failed", "two held it at once"} <= set(picture.texts)


def test_picture_of_a_run_without_holds_and_with_many_workers_is_complete():
    picture = Picture(run(threads=100, processes=7, seconds=86_400.0, nodes=1))
    assert picture.bars == []
    title = "redsync demo: 700 workers in 7 processes compete for 2 locks: 0 acquisitions, 0 overlaps, 0 lost updates"
    assert picture.root.find(f"{SVG}title").text.startswith(title)
    assert "lock:2" in picture.texts
