"""`redsync top`: a page about who holds what, redrawn continuously."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

from redsync.cli.arguments import encoded
from redsync.cli.asking import Nodes
from redsync.cli.exits import FINE, SIGNALLED, UsageError, state_of
from redsync.cli.listing import list_rows, more_than
from redsync.cli.output import Line, draw, enter_screen, leave_screen, shown, write_json
from redsync.cli.pages import Window
from redsync.cli.signals import light_sleep
from redsync.cli.watching import View, holds, look
from redsync.cli.wire import is_ready
from redsync.cli.writing import cells, fitted, narrowed, table, told

__all__ = ["Ages", "page", "top"]

_HEADINGS: Final = ("NAME", "KIND", "HELD BY", "FOR", "LIFE", "NODES", "WAIT")


class Ages:
    """When each hold was first seen. Nodes do not know since when it is held: holds of the first look are older."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str, str], tuple[float, bool]] = {}
        self._is_first = True

    def note(self, view: View, now: float) -> None:
        """Look at what is held now."""
        self._seen = {key: self._seen.get(key, (now, self._is_first)) for key in holds(view)}
        self._is_first = False

    def told(self, key: tuple[str, str, str], now: float) -> str:
        """Return for how long that hold has been seen, for people."""
        if key not in self._seen:
            return "-"
        since, is_older = self._seen[key]
        return f"{'> ' if is_older else ''}{told(now - since)}"


def top(options: Any) -> int:
    """Show what nodes keep, drawn anew every moment, until q or Ctrl-C."""
    if not options.json and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("needs a terminal: take --json, or `redsync watch`")
    with Nodes.chosen(options) as nodes, contextlib.suppress(KeyboardInterrupt), light_sleep() as sleep:
        window = Window(nodes, encoded(options.pattern), options.limit, lambda seen: seen.all_waiting)
        while options.json:
            write_json({"time": time.time(), **look(nodes, window)})
            sleep(options.interval)
        ages = Ages()
        with _screen():
            leaving = False
            while not leaving:
                view, now = look(nodes, window), time.monotonic()
                ages.note(view, now)
                draw(page(view, ages, now, *shutil.get_terminal_size()))
                sleep(options.interval, sys.stdin.fileno())
                leaving = _key() in ("q", "Q", "\x03", "\x04", "")
    return FINE


def page(view: View, ages: Ages, now: float, width: int, height: int) -> list[Line]:
    """Return the lines of one screen; names with the most waiters come first."""
    entries = sorted(view["names"], key=lambda entry: (-entry["waiting"], entry["name"]))
    up = sum(node["error"] is None for node in view["nodes"])
    held = sum(bool(entry["holders"]) for entry in entries)
    waiting = sum(entry["waiting"] for entry in entries)
    count = f"{len(entries)}{'+' if view['more'] else ''} name{'' if len(entries) == 1 else 's'}"
    names = f"{count}, {held} held, {waiting} waiting"
    lines = [Line(f"redsync top  {time.strftime('%H:%M:%S')}  {names}  (q: leave)", "bold")]
    more = Line(more_than(len(entries)) if view["more"] else "", "faint")
    lines += [*_node_lines(view["nodes"], width), more]
    rows = _rows(entries[:height], len(view["nodes"]), ages, now)
    body = table(_HEADINGS, narrowed(_HEADINGS, rows, width, (0, 2, 1)))
    lines.append(Line(body[0] + " " * (width - cells(body[0])), "heading"))
    lines += [Line(line, "bad" if "no quorum" in line else "") for line in body[1:]]
    if up < len(view["nodes"]) // 2 + 1:
        lines.append(Line("too few nodes answer to tell who holds what", "bad"))
    elif not entries:
        lines.append(Line("nothing is held, nobody waits", "faint"))
    # Of each name there is one row at least.
    hidden = len(lines) - height + max(len(entries) - height, 0)
    if len(lines) > height:
        lines[height - 1 :] = [Line(f"... and {hidden + 1} lines more", "faint")]
    return [Line(fitted(shown(text), width), style) for text, style in lines]


def _node_lines(nodes: Sequence[dict[str, Any]], width: int) -> list[Line]:
    """Return how the nodes are: in one line, if it is wide enough, and why those in trouble are."""
    up = sum(node["error"] is None for node in nodes)
    states = "  ".join(f"{node['node']} {_state(node['error'])}" for node in nodes)
    summary = f"{up} of {len(nodes)} nodes answer"
    style = "" if up == len(nodes) else "bad"
    full = f"{summary}: {states}"
    return [
        Line(full if len(full) <= width else summary, style),
        *(Line(f"  {node['node']}: {node['error']}", "bad") for node in nodes if node["error"] is not None),
    ]


def _state(error: str | None) -> str:
    if error is None:
        return "up"
    if (state := state_of(error)) != "no answer":
        return state
    return "silent" if "timed out" in error.lower() or "timeout" in error.lower() else "down"


def _rows(entries: Sequence[dict[str, Any]], count: int, ages: Ages, now: float) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for row, key in zip(list_rows(list(entries), count), _keys(entries), strict=True):
        name, kind, holder, nodes, life, waiting = row
        rows.append((name, kind, holder, ages.told(key, now) if key else "-", life, nodes, waiting))
    return rows


def _keys(entries: Sequence[dict[str, Any]]) -> Iterator[tuple[str, str, str] | None]:
    """Yield for each row of the list which hold it is about."""
    for entry in entries:
        if entry["latch"]:
            yield None
            if entry["kind"] in ("latch", "none"):
                continue
        for holder in entry["holders"]:
            yield entry["name"], holder["owner"], holder["mode"] or ""
        if not entry["holders"]:
            yield None


@contextlib.contextmanager
def _screen() -> Iterator[None]:
    """Take the whole terminal, and give it back as it was."""
    import signal
    import termios
    import tty

    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    # Else a SIGTERM would leave the terminal without echo.
    end = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(SIGNALLED + number))
    try:
        tty.setcbreak(terminal)
        enter_screen()
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
        leave_screen()
        signal.signal(signal.SIGTERM, end)


def _key() -> str | None:
    """Return the key that was pressed, empty when the terminal has gone; None for no key."""
    if not is_ready(0.0, sys.stdin.fileno()):
        return None
    return os.read(sys.stdin.fileno(), 1).decode("latin-1")
