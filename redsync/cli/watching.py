"""`redsync watch`: queries the nodes periodically, and reports changes.

It polls instead of subscribing: that needs no configuration, but misses holds that begin and end between two queries.
It queries at most `--limit` names, so the cost of a query does not grow with their number.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from redsync.cli.arguments import encoded
from redsync.cli.asking import Nodes
from redsync.cli.exits import FINE
from redsync.cli.listing import listed, more_than
from redsync.cli.output import put, warn, write_json
from redsync.cli.pages import Window
from redsync.cli.signals import light_sleep
from redsync.cli.writing import process

__all__ = ["View", "changes", "holds", "look", "settled", "watch"]

View = dict[str, Any]


def look(nodes: Nodes, window: Window) -> View:
    """Return the present state of nodes and names, and whether there are more names."""
    answers, looks = window.look()
    states = [{"node": answer.node, "error": answer.error} for answer in answers]
    return {"nodes": states, "names": listed(looks, nodes.quorum), "more": window.is_full}


def watch(options: Any) -> int:
    """Report each change until Ctrl-C."""
    with Nodes.chosen(options) as nodes:
        window = Window(nodes, encoded(options.pattern), options.limit)
        states = [{"node": node.address, "error": None} for node in nodes.nodes]
        before: View = {"nodes": states, "names": [], "more": False}
        with contextlib.suppress(KeyboardInterrupt), light_sleep() as sleep:
            while True:
                now = settled(before, look(nodes, window))
                if now["more"] and not before["more"]:
                    warn(more_than(options.limit))
                for event in changes(before, now):
                    _tell(event, as_json=options.json)
                before = now
                sleep(options.interval)
    return FINE


def settled(before: View, now: View) -> View:
    """Return the view, but with the names of the previous one if too few nodes answer."""
    answered = sum(node["error"] is None for node in now["nodes"])
    return now if answered >= len(now["nodes"]) // 2 + 1 else {**now, "names": before["names"]}


def changes(before: View, now: View) -> Iterator[dict[str, Any]]:
    """Yield an event for each change: of nodes that answer, of holds, and of numbers of waiters."""
    for old, new in zip(before["nodes"], now["nodes"], strict=True):
        if (old["error"] is None) is not (new["error"] is None):
            yield {"event": "node up" if new["error"] is None else "node down", **new}
    was, held = holds(before), holds(now)
    for begun, gone, event in ((was, held, "released"), (held, was, "acquired")):
        for key in sorted(begun.keys() - gone.keys()):
            yield {"event": event, "name": key[0], **begun[key]}
    waited = {entry["name"]: entry["waiting"] for entry in before["names"]}
    waiting = {entry["name"]: entry["waiting"] for entry in now["names"]}
    for name in sorted(waited.keys() | waiting.keys()):
        if waited.get(name, 0) != waiting.get(name, 0):
            yield {"event": "waiting", "name": name, "count": waiting.get(name, 0)}


def holds(view: View) -> dict[tuple[str, str, str], dict[str, Any]]:
    """Return the holds that a quorum of nodes knows, by name, owner and mode."""
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
        text = f"{event['node']}  {event['error'] or ''}"
    elif what == "waiting":
        text = f"{event['name']}  {event['count']}"
    else:
        text = f"{event['name']}  {event['kind']}  {process(event)}  {event['owner']}"
    put(f"{time.strftime('%H:%M:%S')}  {what:<9}  {text}".rstrip(), flush=True)
