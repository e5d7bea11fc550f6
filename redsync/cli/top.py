"""`redsync top`: a page with holders and waiters, redrawn continuously by rich.

It polls instead of subscribing: that needs no configuration, but misses holds that begin and end between two looks. It
looks at no more than `--limit` names, but scans all keys of the nodes.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from redsync.cli.arguments import encoded
from redsync.cli.exits import FINE, SIGNALLED, UsageError, state_of
from redsync.cli.listing import list_rows, listed, more_than
from redsync.cli.output import console, shown, table_of, told
from redsync.cli.queries import Nodes, look_around
from redsync.cli.signals import is_ready

if TYPE_CHECKING:
    from rich.console import Group
    from rich.text import Text

View = dict[str, Any]

_MOST: Final = 20
"""Holders and waiters identified for each name: cheap enough for a query every second."""

_HEADINGS: Final = ("NAME", "KIND", "HELD BY", "FOR", "LIFE", "NODES", "WAIT")


def look(nodes: Nodes, pattern: bytes, limit: int) -> View:
    """Return the present state of nodes and names, and whether there are more names."""
    answers, looks, has_more = look_around(nodes, pattern, limit, _MOST)
    states = [{"node": answer.node, "error": answer.error} for answer in answers]
    return {"nodes": states, "names": listed(looks, nodes.quorum), "more": has_more}


def holds(view: View) -> dict[tuple[str, str, str], dict[str, Any]]:
    """Return the holds that a quorum of nodes knows, by name, owner and mode."""
    return {
        (entry["name"], holder["owner"], holder["mode"] or ""): {"kind": entry["kind"], **holder}
        for entry in view["names"]
        for holder in entry["holders"]
        if holder["quorum"]
    }


def top(options: Any) -> int:
    """Show the holds and waiters on the nodes, redrawn continuously, until q or Ctrl-C."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("needs a terminal: use `redsync ls --json`")
    screen, pattern = console(), encoded(options.pattern)
    from rich.live import Live

    nodes = Nodes(options)
    with (
        contextlib.suppress(KeyboardInterrupt),
        _raw_keys(),
        Live(console=screen, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False) as live,
    ):
        leaving = False
        while not leaving:
            live.update(page(look(nodes, pattern, options.limit), time.time(), screen.height), refresh=True)
            leaving = _key(options.interval) in ("q", "Q", "\x03", "\x04", "")
    return FINE


def page(view: View, clock: float, height: int) -> Group:
    """Return one screen at an instant in seconds since 1970; names with the most waiters come first."""
    from rich.console import Group

    entries = sorted(view["names"], key=lambda entry: (-entry["waiting"], entry["name"]))
    held = sum(bool(entry["holders"]) for entry in entries)
    waiting = sum(entry["waiting"] for entry in entries)
    count = f"{len(entries)}{'+' if view['more'] else ''} name{'' if len(entries) == 1 else 's'}"
    names = f"{count}, {held} held, {waiting} waiting"
    told_clock = time.strftime("%H:%M:%S", time.localtime(clock))
    lines = [
        _line(f"redsync top  {told_clock}  {names}  (q: quit)", "bold"),
        *_node_lines(view["nodes"]),
        _line(more_than(len(entries)) if view["more"] else "", "dim"),
    ]
    # Each name has at least one row.
    table = table_of(_HEADINGS, _rows(entries[:height], len(view["nodes"]), clock), cut=True)
    last = ""
    if sum(node["error"] is None for node in view["nodes"]) < len(view["nodes"]) // 2 + 1:
        last = "too few nodes answer to know what is held"
    elif not entries:
        last = "no holders, no waiters"
    return Group(*lines, table, _line(last, "red" if entries else "dim"))


def _node_lines(nodes: Sequence[dict[str, Any]]) -> list[Text]:
    """Return the states of the nodes in one line, then one line per error."""
    up = sum(node["error"] is None for node in nodes)
    states = "  ".join(f"{node['node']} {_state(node['error'])}" for node in nodes)
    errors = (_line(f"  {node['node']}: {node['error']}", "red") for node in nodes if node["error"] is not None)
    return [_line(f"{up} of {len(nodes)} nodes answer: {states}", "" if up == len(nodes) else "red"), *errors]


def _line(text: str, style: str) -> Text:
    from rich.text import Text

    return Text(shown(text), style, no_wrap=True, overflow="ellipsis")


def _state(error: str | None) -> str:
    if error is None:
        return "up"
    if (state := state_of(error)) != "no answer":
        return state
    return "silent" if "timed out" in error.lower() or "timeout" in error.lower() else "down"


def _rows(entries: Sequence[dict[str, Any]], count: int, clock: float) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    shown_name = None
    for (name, kind, who, nodes, life, waiting), holder in list_rows(entries, count):
        # The nodes know when a hold began, except a hold younger than its client's latest announcement.
        since = holder["held_since"] if holder else None
        age = "-" if since is None else told(max(clock - since, 0.0))
        # If a name has several holders, only its first row shows the waiters.
        rows.append((name, kind, who, age, life, nodes, waiting if name != shown_name else "-"))
        shown_name = name
    return rows


@contextlib.contextmanager
def _raw_keys() -> Iterator[None]:
    """Read keys at once and without an echo; restore the terminal at the end."""
    import signal
    import termios
    import tty

    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    # Otherwise a SIGTERM would leave the terminal without echo.
    end = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(SIGNALLED + number))
    try:
        tty.setcbreak(terminal)
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
        signal.signal(signal.SIGTERM, end)


def _key(seconds: float) -> str | None:
    """Wait for a key, and return it, or None; an empty string if the terminal has gone."""
    if not is_ready(seconds, sys.stdin.fileno()):
        return None
    return os.read(sys.stdin.fileno(), 1).decode("latin-1")
