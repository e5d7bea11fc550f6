"""`redsync watch` and `top`: the same look at the nodes, again and again.

Nodes are asked, not subscribed to: what begins and ends between two looks is not seen, but nothing must be configured.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import sys
import time
from collections.abc import Iterator
from typing import Any

from redsync.cli.asking import FINE, USAGE, Answer, Nodes, SetupError
from redsync.cli.listing import HEADINGS, encoded, list_rows, listed, survey
from redsync.cli.writing import shown, table, write_json

__all__ = ["changes", "page", "settled", "top", "watch"]

MOST = 20
"""Holders and waiters of each name that are asked for: enough to see who, and cheap enough to be asked every second."""

_ENTER, _LEAVE, _HOME = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l", "\x1b[H"
_END_OF_LINE, _END_OF_SCREEN = "\x1b[K", "\x1b[J"

View = dict[str, Any]


def look(nodes: Nodes, pattern: str) -> View:
    """Return what nodes keep now, and which of them do not answer."""
    answers = survey(nodes, encoded(pattern), MOST)
    return {"nodes": [_node(answer) for answer in answers], "names": listed(nodes, answers)}


def _node(answer: Answer[Any]) -> dict[str, str | None]:
    return {"node": answer.node, "error": answer.error}


def watch(options: Any) -> int:
    """Tell of each change until Ctrl-C."""
    with Nodes.chosen(options) as nodes:
        before: View = {"nodes": [{"node": node.address, "error": None} for node in nodes.nodes], "names": []}
        with contextlib.suppress(KeyboardInterrupt):
            while True:
                now = settled(before, look(nodes, options.pattern))
                for event in changes(before, now):
                    _tell(event, as_json=options.json)
                before = now
                time.sleep(options.interval)
    return FINE


def settled(before: View, now: View) -> View:
    """Return the view with the names of the one before it if too few nodes answer to tell who holds what."""
    answered = sum(node["error"] is None for node in now["nodes"])
    return now if answered >= len(now["nodes"]) // 2 + 1 else {**now, "names": before["names"]}


def changes(before: View, now: View) -> Iterator[dict[str, Any]]:
    """Yield what is different now: nodes that went or came back, holds that began or ended, waiters."""
    for old, new in zip(before["nodes"], now["nodes"], strict=True):
        if (old["error"] is None) is not (new["error"] is None):
            yield {"event": "node up" if new["error"] is None else "node down", **new}
    was, held = _holds(before), _holds(now)
    for begun, gone, event in ((was, held, "released"), (held, was, "acquired")):
        for key in sorted(begun.keys() - gone.keys()):
            yield {"event": event, "name": key[0], **begun[key]}
    waited = {entry["name"]: entry["waiting"] for entry in before["names"]}
    waiting = {entry["name"]: entry["waiting"] for entry in now["names"]}
    for name in sorted(waited.keys() | waiting.keys()):
        if waited.get(name, 0) != waiting.get(name, 0):
            yield {"event": "waiting", "name": name, "count": waiting.get(name, 0)}


def _holds(view: View) -> dict[tuple[str, str, str], dict[str, Any]]:
    return {
        (entry["name"], holder["owner"], holder["mode"] or ""): {"kind": entry["kind"], **holder}
        for entry in view["names"]
        for holder in entry["holders"]
        if holder["quorum"]
    }


def _tell(event: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        write_json({"time": time.time(), **event})
        return
    what = event["event"]
    if "node" in event and what.startswith("node"):
        text = f"{what}  {event['node']}  {shown(event['error'] or '')}"
    elif what == "waiting":
        text = f"waiting  {shown(event['name'])}  {event['count']}"
    else:
        process = f"{event['host']}:{event['pid']}" if event["host"] else event["owner"]
        text = f"{what}  {shown(event['name'])}  {event['kind']}  {shown(process)}  {shown(event['owner'])}"
    print(f"{time.strftime('%H:%M:%S')}  {text}".rstrip(), flush=True)


def top(options: Any) -> int:
    """Show what nodes keep, drawn anew every moment, until q or Ctrl-C."""
    if not options.json and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise SetupError("needs a terminal: take --json, or `redsync watch`", USAGE)
    with Nodes.chosen(options) as nodes, contextlib.suppress(KeyboardInterrupt):
        if options.json:
            while True:
                write_json({"time": time.time(), **look(nodes, options.pattern)})
                time.sleep(options.interval)
        with _screen():
            leaving = False
            while not leaving:
                _draw(page(look(nodes, options.pattern), *shutil.get_terminal_size()))
                leaving = _key_within(options.interval) in ("q", "Q", "\x03", "\x04", "")
    return FINE


def page(view: View, width: int, height: int) -> list[str]:
    """Return the lines of one screen; what most wait for comes first."""
    entries = sorted(view["names"], key=lambda entry: (-entry["waiting"], entry["name"]))
    up = sum(node["error"] is None for node in view["nodes"])
    held = sum(bool(entry["holders"]) for entry in entries)
    waiting = sum(entry["waiting"] for entry in entries)
    answering = f"{time.strftime('%H:%M:%S')}  {up} of {len(view['nodes'])} nodes answer"
    lines = [f"{answering}, {len(entries)} names, {held} held, {waiting} waiting  (q: leave)"]
    lines += [f"node {node['node']}: {shown(node['error'])}" for node in view["nodes"] if node["error"] is not None]
    lines += ["", *table(HEADINGS, list_rows(entries[:height], len(view["nodes"])))]
    if len(lines) > height:
        lines[height - 1 :] = [f"... and {len(lines) - height + 1} lines more"]
    return [line[:width] for line in lines]


@contextlib.contextmanager
def _screen() -> Iterator[None]:
    """Take the whole terminal, and give it back as it was."""
    import signal
    import termios
    import tty

    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    # Else whoever ends us would leave a terminal without echo.
    end = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        tty.setcbreak(terminal)
        sys.stdout.write(_ENTER)
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()
        signal.signal(signal.SIGTERM, end)


def _draw(lines: list[str]) -> None:
    # Written over what stood there rather than on a cleared screen, which would flicker.
    sys.stdout.write(_HOME + "\r\n".join(line + _END_OF_LINE for line in lines) + _END_OF_SCREEN)
    sys.stdout.flush()


def _key_within(seconds: float) -> str | None:
    """Return the key that is pressed within that time, empty when the terminal has gone; None for no key."""
    if not select.select([sys.stdin], [], [], seconds)[0]:
        return None
    return os.read(sys.stdin.fileno(), 1).decode("latin-1")
