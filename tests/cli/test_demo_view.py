"""The demo's two views."""

import io
import os
import sys

import pytest
from rich.color import Color
from rich.console import Console

from redsync.cli import demo_view
from redsync.cli.demo_view import LiveView, NodeLine, PlainView, Snapshot, choose_view
from tests.cli.test_drawing import contrast

NODES = [NodeLine("127.0.0.1:1", "up"), NodeLine("127.0.0.1:2", "down", "killed")]
ROWS = [("acquisitions", "1,234"), ("overlaps", "0"), ("lost updates", "2"), ("zombie keys", "0")]
FAILURES = [False, False, True, False]


class Terminal(io.StringIO):
    def isatty(self):
        return True


def snapshot(elapsed, trouble=0):
    return Snapshot(elapsed, 12.0, 1234, 456.7, trouble, NODES)


def test_colours_of_nodes_that_answer_contrast_with_light_and_dark_terminals():
    for state in ("up", "quarantined"):
        colour = Color.parse(demo_view._COLOURS[state]).get_truecolor().hex
        assert min(contrast(colour, "#000000"), contrast(colour, "#ffffff")) > 4.4


def test_plain_view_prints_a_line_per_second():
    out = []
    view = PlainView(lambda *lines: out.extend(lines))
    for tenth in range(25):
        view.update(snapshot(tenth / 10, trouble=tenth // 20))
    assert out == [
        "  0.0 s    1,234 acquisitions,   457/s  nodes: up, down (killed)",
        "  1.0 s    1,234 acquisitions,   457/s  nodes: up, down (killed)",
        "  2.0 s    1,234 acquisitions,   457/s, 1 failed  nodes: up, down (killed)",
    ]


def test_plain_view_marks_broken_promises_in_the_table():
    out = []
    view = PlainView(lambda *lines: out.extend(lines))
    view.table(ROWS, FAILURES)
    view.close()
    assert out == [
        "",
        "  acquisitions  1,234",
        "  overlaps          0",
        "  lost updates      2  <- must be 0",
        "  zombie keys       0",
        "",
    ]


def test_live_view_shows_run_and_report():
    out = Terminal()
    view = LiveView(Console(file=out, force_terminal=True, width=100, color_system=None))
    view.say("node 2 is killed [SIGKILL]")
    view.update(snapshot(3.0, trouble=7))
    view._live.refresh()
    view.close()
    view.table(ROWS, FAILURES)
    text = out.getvalue()
    for shown in ("node 2 is killed [SIGKILL]", "127.0.0.1:2", "killed", "7 attempts failed", "3.0 of 12 s"):
        assert shown in text
    assert "lost updates" in text
    view.close()


@pytest.mark.parametrize("lacks", ["a terminal", "its abilities", "rich"])
def test_view_is_plain_without(monkeypatch, lacks):
    monkeypatch.setattr(sys, "stdout", io.StringIO() if lacks == "a terminal" else Terminal())
    monkeypatch.setenv("TERM", "dumb" if lacks == "its abilities" else "xterm")
    if lacks == "rich":
        monkeypatch.setitem(sys.modules, "rich.console", None)
    assert isinstance(choose_view(), PlainView)


def test_plain_view_breaks_lines_between_words_where_the_terminal_is_narrow(monkeypatch):
    terminal = Terminal()
    terminal.fileno = lambda: 1
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr("os.get_terminal_size", lambda number: os.terminal_size((40, 24)))
    monkeypatch.setenv("TERM", "dumb")
    choose_view().say("no lock had two holders at any one time, and no update was lost\n\n  1.0 s  node 1")
    assert terminal.getvalue().splitlines() == [
        "no lock had two holders at any one time,",
        "  and no update was lost",
        "",
        "  1.0 s  node 1",
    ]


def test_view_is_live_in_terminal_with_rich(monkeypatch):
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    view = choose_view()
    assert isinstance(view, LiveView)
    view.close()
