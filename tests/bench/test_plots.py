"""The plots of the benchmarks: drawn only from the table, without entries that have no rows."""

import argparse
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from bench import report
from bench.__main__ import _publish
from bench.measure import Figure
from bench.plots import Row, plots, rows_of

ROOT = Path(__file__).parents[2]
MACHINE = {
    "cores": "2",
    "load before": "0.1",
    "system": "Linux x86_64",
    "Python": "3.11.7 (built with LTO)",
    "server": "Valkey 9",
    "date": "2026-11-25",
}
PAIRS = [
    Figure("pairs", "p50", "us", 283.0, 168.0, 1.7, "ratio <= 1.35", met=False),
    Figure("pairs", "client CPU", "us", 199.0, 106.0, 1.96),
]
PEERS = [
    Figure("peers", "redsync: p50", "us", 300.0, 150.0, 2.0),
    Figure("peers", "redsync: client CPU", "us", 200.0, 100.0, 2.0),
    Figure("peers", "slow one: p50", "us", 1_234.0, 150.0, 8.2),
    Figure("peers", "slow one: client CPU", "us", 900.0, 100.0, 9.0),
    Figure("peers", "redsync, 1 server: p50", "us", 80.0, 40.0, 2.0),
    Figure("peers", "redsync, 1 server: client CPU", "us", 70.0, 30.0, 2.3),
    Figure("peers", "slow one, 1 node down: granted", "%", 98.0),
    Figure("peers", "slow one, 1 node down: p50", "us", 200_000.0, 150.0, 1333.0),
    Figure("peers", "slow one, 1 node hung: granted", "%", 0.0),
]


def drawn(figures):
    """Return the texts of each plot of a table, with their positions."""
    page = f"before\n\n{report.as_page(figures, MACHINE)}\n\nafter | 1 | 2 |\n"
    found = {}
    for name, figure in plots(*rows_of(page)).items():
        root = ET.fromstring(figure.svg())
        texts = (text for text in root.iter() if text.tag.endswith("text"))
        found[name.removeprefix("bench-")] = [("".join(text.itertext()), float(text.get("y"))) for text in texts]
    return found


def words(texts):
    return [word for word, _ in texts]


def test_table_is_read_as_it_was_written():
    machine, rows = rows_of(report.as_page(PAIRS + PEERS[2:3], MACHINE))
    assert machine.startswith("2 cores, load before 0.1")
    assert rows == [
        Row("pairs", "p50", "us", 283.0, 168.0),
        Row("pairs", "client CPU", "us", 199.0, 106.0),
        Row("peers", "slow one: p50", "us", 1234.0, 150.0),
    ]


def test_line_about_the_machine_may_be_broken_into_lines():
    page = report.as_page(PAIRS, MACHINE)
    assert rows_of(page.replace(", server", ",\nserver")) == rows_of(page)


def test_page_without_a_table_has_no_plots():
    assert plots(*rows_of("nothing")) == {}


def test_pair_is_drawn_beside_the_floor_where_no_others_were_measured():
    texts = words(drawn(PAIRS)["pairs"])
    assert texts.index("bare sockets") < texts.index("redsync")
    assert {"283 us", "168 us", "199 us", "106 us"} <= set(texts)


def test_libraries_are_drawn_in_the_order_of_their_latency_on_five_servers_and_on_one():
    texts = drawn(PAIRS + PEERS)["pairs"]
    labels = ["bare sockets", "redsync", "slow one"]
    assert [word for word, _ in sorted(texts, key=lambda text: text[1]) if word in labels] == [*labels, *labels[:2]]
    assert {"1,234 us", "80 us", "one server: p50 of a pair"} <= set(words(texts))


def test_library_without_lock_in_trouble_is_marked():
    texts = words(drawn(PAIRS + PEERS)["faults"])
    assert [word for word in texts if word.startswith("no lock")] == ["no lock: one hung"]
    assert {"slow one", "1 ms", "1 s"} <= set(texts)
    assert "redsync" not in texts  # this table has no rows of redsync with failed nodes


def test_contention_and_held_locks_are_drawn():
    figures = [
        *(Figure("contended", f"lock, 8 x 1: {what}", "x", 0.7, 0.84, 0.8) for what in ("acquired / ideal", "x")),
        Figure("contended", "lock, 8 x 1: handed to another / ideal", "x", 0.65, 0.84, 0.8),
        Figure("contended", "lock, 8 x 1: wait p99", "ms", 23.6),
        Figure("contended", "lock (new object, lease 10 s), 8 x 1: acquired / ideal", "x", 0.1, 0.84, 0.1),
        Figure("held", "1,000 held: CPU, lease 30 s", "% core", 0.085, 0.006, 13.9),
        Figure("held", "1,000 held: commands per node, period", "", 5.5, 5.0),
    ]
    found = drawn(figures)
    assert {"redsync lock", "70 %", "65 %", "23.6 ms"} <= set(words(found["contention"]))
    assert "10 %" not in words(found["contention"])
    assert {"1,000: redsync", "1,000: bare sockets", "0.085 %", "0.006 %", "5.50", "5.00"} <= set(words(found["held"]))


def test_published_plots_stand_on_the_page():
    page = report.DOCUMENT.read_text()
    shown = set(re.findall(r"\(figures/(bench-\w+)\.svg\)", page))
    assert shown == set(plots(*rows_of(page)))


def test_run_draws_into_the_folder_that_was_asked_for(tmp_path):
    files = report.draw(tmp_path / "new", report.as_page(PAIRS, MACHINE))
    assert [file.name for file in files] == ["bench-pairs.svg"]
    assert all(file.read_text().startswith("<svg") for file in files)


@pytest.mark.parametrize("path", ["bench/plots.py"])
def test_plots_need_nothing_of_a_run(path):
    imported = set(re.findall(r"(?m)^from (\w+)", (ROOT / path).read_text()))
    assert imported <= {"__future__", "collections", "typing", "redsync"}


def test_publishing_writes_the_table_and_draws_it_in_one_run(monkeypatch, tmp_path):
    page = tmp_path / "benchmarks.md"
    page.write_text("# Benchmarks\n\n<!-- table -->\nold\n<!-- /table -->\n\nThe end.\n")
    monkeypatch.setattr(report, "DOCUMENT", page)
    options = argparse.Namespace(json=None, plots=None, write=True)
    _publish(options, PAIRS, MACHINE, [])
    text = page.read_text()
    assert text.startswith("# Benchmarks\n\n<!-- table -->\n\n2 cores, ")
    assert text.endswith("<!-- /table -->\n\nThe end.\n")
    drawn = {name: figure.svg() for name, figure in plots(*rows_of(text)).items()}
    assert {file.stem: file.read_text() for file in (tmp_path / "figures").iterdir()} == drawn


def test_nothing_is_published_when_a_bench_failed(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(report, "DOCUMENT", tmp_path / "benchmarks.md")
    _publish(argparse.Namespace(json=None, plots=None, write=True), PAIRS, MACHINE, ["peers"])
    assert list(tmp_path.iterdir()) == []
    assert "failed to measure: peers" in capsys.readouterr().err
