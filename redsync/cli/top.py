"""`redsync top`: a page with holders and waiters, redrawn continuously."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections import deque
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

_HEADINGS: Final = ("NAME", "KIND", "HELD BY", "FOR", "LIFE", "NODES", "WAIT", "LONGEST", "SERVED/S")

_NARROW: Final = 90
"""The terminal's width, in characters, below which the last two columns are left out: names need the room."""

_SERVED_FOR: Final = 10.0
"""The period, in seconds, over which served waiters are counted."""


class Ages:
    """The age of each hold, the waiting time of each waiter, and the number of waiters served.

    The nodes know when a hold began, except a hold younger than its client's latest announcement. The age of such a
    hold, and of a waiter, counts from the look that found it first. Holds and waiters of the first look are older.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str, str], tuple[float, bool]] = {}
        self._kept: dict[tuple[str, str, str], float] = {}
        self._waiters: dict[str, dict[str, tuple[float, bool]]] = {}
        self._served: dict[str, deque[tuple[float, int]]] = {}
        self._is_first = True

    def note(self, view: View, now: float, clock: float | None = None) -> None:
        """Record the holds and waiters of a look; `clock`: its instant in seconds since 1970, None: now."""
        clock = time.time() if clock is None else clock
        held = holds(view)
        self._seen = {key: self._seen.get(key, (now, self._is_first)) for key in held}
        self._kept = {
            key: now - max(clock - holder["held_since"], 0.0)
            for key, holder in held.items()
            if holder.get("held_since") is not None
        }
        before, self._waiters = self._waiters, {}
        for entry in view["names"]:
            name, waiting = entry["name"], entry.get("waiters", ())
            known = before.pop(name, {})
            self._waiters[name] = {owner: known.get(owner, (now, self._is_first)) for owner in waiting}
            self._note_served(name, len(known.keys() - set(waiting)), now)
        for name, known in before.items():
            self._note_served(name, len(known), now)
        self._is_first = False

    def _note_served(self, name: str, count: int, now: float) -> None:
        served = self._served.setdefault(name, deque([(now, 0)]))
        if count:
            served.append((now, count))
        while len(served) > 1 and served[1][0] < now - _SERVED_FOR:
            served.popleft()
        if len(served) == 1 and name not in self._waiters:
            del self._served[name]

    def told(self, key: tuple[str, str, str], now: float) -> str:
        """Return the age of a hold as text."""
        if key in self._kept:
            return told(now - self._kept[key])
        return _told(self._seen.get(key), now)

    def waited(self, name: str, now: float) -> str:
        """Return as text for how long the first waiter of a name has waited."""
        return _told(min(self._waiters.get(name, {}).values(), default=None), now)

    def served(self, name: str, now: float) -> str:
        """Return as text how many waiters of a name per second have stopped waiting lately."""
        served = self._served.get(name)
        if served is None or not (count := sum(number for at, number in served if at >= now - _SERVED_FOR)):
            return "-"
        return f"{count / min(max(now - served[0][0], 1.0), _SERVED_FOR):.1f}"


def _told(seen: tuple[float, bool] | None, now: float) -> str:
    if seen is None:
        return "-"
    since, is_older = seen
    return f"{'> ' if is_older else ''}{told(now - since)}"


def top(options: Any) -> int:
    """Show the holds and waiters on the nodes, redrawn continuously, until q or Ctrl-C."""
    if not options.json and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("needs a terminal: use --json, or `redsync watch`")
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
    lines = [Line(f"redsync top  {time.strftime('%H:%M:%S')}  {names}  (q: quit)", "bold")]
    more = Line(more_than(len(entries)) if view["more"] else "", "faint")
    lines += [*_node_lines(view["nodes"], width), more]
    headings = _HEADINGS if width >= _NARROW else _HEADINGS[:-2]
    rows = [row[: len(headings)] for row in _rows(entries[:height], len(view["nodes"]), ages, now)]
    body = table(headings, narrowed(headings, rows, width, (0, 2, 1)))
    lines.append(Line(body[0] + " " * (width - cells(body[0])), "heading"))
    lines += [Line(line, "bad" if "no quorum" in line else "") for line in body[1:]]
    if up < len(view["nodes"]) // 2 + 1:
        lines.append(Line("too few nodes answer to know what is held", "bad"))
    elif not entries:
        lines.append(Line("no holders, no waiters", "faint"))
    # Each name has at least one row.
    hidden = len(lines) - height + max(len(entries) - height, 0)
    if len(lines) > height:
        lines[height - 1 :] = [Line(f"... and {hidden + 1} lines more", "faint")]
    return [Line(fitted(shown(text), width), style) for text, style in lines]


def _node_lines(nodes: Sequence[dict[str, Any]], width: int) -> list[Line]:
    """Return the states of the nodes, in one line if the terminal is wide enough, then one line per error."""
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
    shown_name = None
    for (name, kind, who, nodes, life, waiting), holder in list_rows(entries, count):
        held = ages.told((name, holder["owner"], holder["mode"] or ""), now) if holder else "-"
        # If a name has several holders, only its first row shows the waiters.
        queue = (waiting, ages.waited(name, now), ages.served(name, now)) if name != shown_name else ("-", "-", "-")
        shown_name = name
        rows.append((name, kind, who, held, life, nodes, *queue))
    return rows


@contextlib.contextmanager
def _screen() -> Iterator[None]:
    """Use the whole terminal; restore it at the end."""
    import signal
    import termios
    import tty

    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    # Otherwise a SIGTERM would leave the terminal without echo.
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
    """Return the key that was pressed, or None; an empty string if the terminal has gone."""
    if not is_ready(0.0, sys.stdin.fileno()):
        return None
    return os.read(sys.stdin.fileno(), 1).decode("latin-1")
