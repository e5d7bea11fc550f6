"""`redsync top`: the table of `redsync ls`, redrawn continuously by rich.

It polls instead of subscribing: that needs no configuration, but misses holds that begin and end between two looks. It
looks at no more than `--limit` names, but scans all keys of the nodes.
"""

from __future__ import annotations

import signal
import sys
import time
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.text import Text

from redsync.cli.arguments import encoded
from redsync.cli.exits import FINE, SIGNALLED, SetupError, state_of
from redsync.cli.listing import LISTED, MOST, View, list_rows, look, more_than
from redsync.cli.output import shown
from redsync.cli.queries import Nodes
from redsync.cli.tables import console, table_of


def top(options: Any) -> int:
    """Show the holds and waiters on the nodes, redrawn continuously, until Ctrl-C."""
    if not (sys.stdout and sys.stdout.isatty()):
        raise SetupError("needs a terminal: use `redsync ls --json`")
    screen, nodes = console(), Nodes(options)
    # `Live` restores the terminal at both ends.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(SIGNALLED + number))
    try:
        with Live(
            console=screen, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        ) as live:
            while True:
                view = look(nodes, encoded(options.pattern), options.limit, MOST)
                live.update(page(view, time.time(), screen.height), refresh=True)
                time.sleep(options.interval)
    except KeyboardInterrupt:
        return FINE


def page(view: View, clock: float, height: int) -> Group:
    """Return one screen at an instant in seconds since 1970; names with the most waiters come first."""
    entries, nodes = sorted(view["names"], key=lambda entry: (-entry["waiting"], entry["name"])), view["nodes"]
    held, waiting = sum(bool(entry["holders"]) for entry in entries), sum(entry["waiting"] for entry in entries)
    count = f"{len(entries)}{'+' if view['more'] else ''} name{'' if len(entries) == 1 else 's'}"
    now = time.strftime("%H:%M:%S", time.localtime(clock))
    up = sum(node["error"] is None for node in nodes)
    states = "  ".join(f"{node['node']} {state_of(node['error']) if node['error'] else 'up'}" for node in nodes)
    last = "" if entries else "no holders, no waiters"
    if up < len(nodes) // 2 + 1:
        last = "too few nodes answer to know what is held"
    return Group(
        _line(f"redsync top  {now}  {count}, {held} held, {waiting} waiting  (Ctrl-C: quit)", "bold"),
        _line(f"{up} of {len(nodes)} nodes answer: {states}", "" if up == len(nodes) else "red"),
        *(_line(f"  {node['node']}: {node['error']}", "red") for node in nodes if node["error"] is not None),
        _line(more_than(len(entries)) if view["more"] else "", "dim"),
        # Each name has at least one row.
        table_of(LISTED, list_rows(entries[:height], len(nodes), clock), cut=True),
        _line(last, "red" if entries else "dim"),
    )


def _line(text: str, style: str) -> Text:
    return Text(shown(text), style, no_wrap=True, overflow="ellipsis")
