"""The plots of the benchmarks: drawn only from the table, without entries that have no rows."""

import argparse
import re
from xml.etree import ElementTree as ET

from bench import report
from bench.__main__ import _publish
from bench.measure import Figure
from bench.plots import PUBLISHED, plots, rows_of

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
    found = {}
    for name, figure in plots(*rows_of(report.as_json(figures, MACHINE))).items():
        root = ET.fromstring(figure.svg())
        texts = (text for text in root.iter() if text.tag.endswith("text"))
        found[name.removeprefix("bench-")] = [("".join(text.itertext()), float(text.get("y"))) for text in texts]
    return found


def words(texts):
    return [word for word, _ in texts]


def test_libraries_are_drawn_in_the_order_of_their_latency_on_five_servers_and_on_one():
    texts = drawn(PAIRS + PEERS)["pairs"]
    labels = ["bare sockets", "redsync", "slow one"]
    assert [word for word, _ in sorted(texts, key=lambda text: text[1]) if word in labels] == [*labels, *labels[:2]]
    assert {"1,234 us", "80 us", "one server: p50 of a pair"} <= set(words(texts))


def test_published_plots_stand_on_the_page():
    page = report.DOCUMENT.read_text()
    shown = set(re.findall(r"\(figures/(bench-\w+)\.svg\)", page))
    assert shown == set(plots(*rows_of(PUBLISHED.read_text())))


def test_publishing_writes_the_table_and_draws_it_in_one_run(monkeypatch, tmp_path):
    page = tmp_path / "benchmarks.md"
    page.write_text("# Benchmarks\n\n<!-- table -->\nold\n<!-- /table -->\n\nThe end.\n")
    monkeypatch.setattr(report, "DOCUMENT", page)
    monkeypatch.setattr(report, "PUBLISHED", tmp_path / "figures" / "benchmarks.json")
    (tmp_path / "figures").mkdir()
    options = argparse.Namespace(json=None, plots=None, write=True)
    _publish(options, PAIRS + PEERS, MACHINE, [])
    text = page.read_text()
    assert text.startswith("# Benchmarks\n\n<!-- table -->\n\n2 cores, ")
    assert text.endswith("<!-- /table -->\n\nThe end.\n")
    assert text.count("| pairs |") == 1  # the other row has no target
    assert "| slow one | 1,234 us, 8.20 x | 98 % granted, 200,000 us, 1333.00 x | 0 % granted |\n" in text
    drawn = plots(*rows_of((tmp_path / "figures" / "benchmarks.json").read_text()))
    assert {file.stem: file.read_text() for file in (tmp_path / "figures").glob("*.svg")} == {
        name: figure.svg() for name, figure in drawn.items()
    }


def test_nothing_is_published_when_a_bench_failed(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(report, "DOCUMENT", tmp_path / "benchmarks.md")
    _publish(argparse.Namespace(json=None, plots=None, write=True), PAIRS, MACHINE, ["peers"])
    assert list(tmp_path.iterdir()) == []
    assert "failed to measure: peers" in capsys.readouterr().err
