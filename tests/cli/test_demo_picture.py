"""The demo's picture: every hold is a bar of exactly its time, every outage a band, and what went wrong is marked."""

import re
from xml.etree import ElementTree as ET

import pytest

from redsync.cli.demo_faults import Outage
from redsync.cli.demo_picture import PictureFile, Run, draw
from redsync.cli.demo_report import Findings, Report
from redsync.cli.exits import UNWRITABLE, SetupError
from tests.cli.test_demo_report import acquisition

BEGIN = 7_000_000_000_123
MS = 1_000_000
SVG = "{http://www.w3.org/2000/svg}"


def hold(worker, granted, ended):
    return [line | {"number": granted} for line in acquisition(worker, BEGIN + granted, BEGIN + ended, 1)]


def run(*journals, outages=(), **changes):
    """Two processes of two threads, two locks; all holds are of the first."""
    given = {
        "lines": [line for journal in journals for line in journal],
        "names": ["lock:1", "lock:<2>"],
        "ledgers": [[], []],
        "counters": [0, 0],
        "zombies": {},
        "seconds": 2.0,
        "nodes": 3,
        "processes": 2,
        "threads": 2,
    }
    return Run(Report(Findings(**given | changes)), BEGIN, outages)


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
    journals = [hold(number % 4, number * 5 * MS + 1_000, number * 5 * MS + 2_345_678) for number in range(300)]
    picture = Picture(run(*journals))
    assert picture.of("accent") == [(number * 5 + 0.001, 2.345, 0) for number in range(300)]


def test_close_up_shows_each_hold_in_the_row_of_its_worker_and_the_colour_of_its_process():
    near = [hold(worker, (1010 + worker * 20) * MS, (1020 + worker * 20) * MS) for worker in range(4)]
    far = [hold(0, 10 * MS, 20 * MS), hold(1, 1900 * MS, 1950 * MS)]
    picture = Picture(run(*near, *far))
    assert picture.of("accent", rows=4) == [(1010, 10, 0), (1030, 10, 1)]
    assert picture.of("good", rows=4) == [(1050, 10, 2), (1070, 10, 3)]
    assert {span[:1] + span[2:3] for *_, span in picture.bars if span[3] == 4} == {(900, 400)}
    assert "process 2" in picture.texts


def test_close_up_begins_before_the_first_fault():
    outage = Outage(1, "killed", BEGIN + 500 * MS, BEGIN + 900 * MS)
    picture = Picture(run(hold(0, 490 * MS, 510 * MS), outages=[outage]))
    ((*_, span),) = [bar for bar in picture.bars if bar[4][3] == 4]
    assert span[:3] == (400, 0, 400)
    assert "node 2 killed" in picture.texts


def test_every_outage_is_a_band_of_its_time():
    outages = [
        Outage(0, "killed", BEGIN + 500 * MS, BEGIN + 1000 * MS),
        Outage(2, "hung", BEGIN + 800 * MS),  # never mended
    ]
    picture = Picture(run(hold(0, 0, MS), outages=outages))
    assert picture.of("bad") == [(500, 500, 0)]
    assert picture.of("warn") == [(800, 1200, 0)]
    assert {"killed", "hung"} <= set(picture.texts)


def test_losses_failures_and_overlaps_are_marked_and_explained():
    lost = {"event": "lost", "at": BEGIN + 60 * MS, "worker": 1, "number": 20 * MS}
    busy = {"event": "busy", "at": BEGIN + 70 * MS, "worker": 2, "number": 9, "name": "lock:<2>", "asked": BEGIN}
    journals = [hold(0, 10 * MS, 30 * MS), [*hold(1, 20 * MS, 40 * MS)[:-1], lost], [busy]]
    picture = Picture(run(*journals))
    assert picture.of("bad") == [(10, 20, 0), (20, 20, 0)]
    assert picture.count("path", "l-bad") == 1 + 4  # the strip; a cross in the lane, and one in the legend
    assert picture.count("circle", "warn") == 2
    assert {"lost", "an attempt failed", "two held it at once"} <= set(picture.texts)


def test_legend_names_only_marks_in_the_picture():
    picture = Picture(run(hold(0, 10 * MS, 30 * MS)))
    assert not {"lost", "an attempt failed", "two held it at once"} & set(picture.texts)


def test_picture_of_a_run_without_holds_and_with_many_workers_is_complete():
    picture = Picture(run(threads=100, processes=7, seconds=86_400.0, nodes=1))
    assert picture.bars == []
    title = "redsync demo: 700 workers in 7 processes compete for 2 locks: 0 acquisitions, 0 overlaps, 0 lost updates"
    assert picture.root.find(f"{SVG}title").text.startswith(title)
    assert "lock:<2>" in picture.texts


def test_no_file_is_touched_without_a_path():
    with PictureFile(None) as file:
        assert not file.write(run())


def test_file_is_written_after_the_run(tmp_path):
    path = tmp_path / "run.svg"
    path.write_text("old")
    with PictureFile(str(path)) as file:
        assert path.read_text() == "old"
        assert file.write(run())
    assert path.read_text() == draw(run())


def test_full_disk_is_reported_plainly(tmp_path):
    with PictureFile("/dev/full") as file, pytest.raises(SetupError, match="No space left on device") as caught:
        file.write(run())
    assert caught.value.status == UNWRITABLE
