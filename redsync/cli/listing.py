"""`redsync ls`, `top`, `show` and `break`: the names on the nodes, their holders, and the forced release of a hold."""

from __future__ import annotations

import signal
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from redsync._core.client_records import Claim, ClientRecord, cut, short, who
from redsync._protocols.surveys import (
    NameLook,
    break_commands,
    claims_meant,
    is_likely,
    key_patterns,
    look_command,
    name_of_key,
)
from redsync.cli.arguments import encoded
from redsync.cli.exits import BROKEN, FINE, SIGNALLED, SetupError, state_of
from redsync.cli.output import clock, put, shown, tell, told, warn, write_json
from redsync.cli.queries import Answer, Node, Nodes, execute, look_at

if TYPE_CHECKING:
    import redis
    from rich.console import Group

    from redsync._core.clusters import KeyTagging

View = dict[str, Any]  # the nodes with their errors, the names with their holders, and whether there are more
MOST = 20
"""Holders and waiters that `top` and the exporter identify for each name: cheap enough for a query every second."""

_LISTED = ("NAME", "KIND", "HELD BY", "FOR", "NODES", "LIFE LEFT", "WAITING")
_SHOWN = ("NODE", "HELD BY", "OWNER", "COUNT", "LIFE LEFT", "WAITING")


def look(nodes: Nodes, pattern: bytes, limit: int, most: int = 100) -> View:
    """Return the present state of the nodes, and a summary of each name over all of them, sorted by name.

    Each look scans all keys. Of more names than the limit it asks about the first ones as sorted, so that the next look
    chooses the same; names that have just gone are left out, and without a prefix those that are probably no
    synchronizer's. It identifies `most` holders and waiters of each name at most.
    """
    found = dict(zip(nodes.nodes, nodes.ask(partial(_scan, nodes.prefix, pattern)), strict=True))
    names = sorted(set[bytes]().union(*(answer.value or () for answer in found.values())))
    asked = {name: look_command(nodes.prefix, name, most, listing=True) for name in names[:limit]}
    answering = [node for node, answer in found.items() if answer.error is None]
    looked = nodes.ask(lambda client, tagging: look_at(client, tagging, asked), answering)
    answers: dict[Node, Answer[Any]] = {**found, **dict(zip(answering, looked, strict=True))}
    entries = []
    for name in asked:
        looks = [answer.value[name] for answer in looked if answer.value and name in answer.value]
        if looks and (nodes.prefix or any(map(is_likely, looks))):
            entries.append(_summary(name, looks, nodes.quorum))
    states = [{"node": answer.node, "error": answer.error} for answer in answers.values()]
    return {"quorum": nodes.quorum, "names": entries, "more": len(names) > limit, "nodes": states}


def _scan(prefix: bytes, pattern: bytes, client: redis.Redis, tagging: KeyTagging) -> set[bytes]:
    patterns = map(tagging.key, key_patterns(prefix, pattern))
    keys = (tagging.plain(key) for each in patterns for key in client.scan_iter(each, count=1000))
    return {name for key in keys if (name := name_of_key(prefix, key)) is not None}


def _summary(name: bytes, looks: list[NameLook], quorum: int) -> dict[str, Any]:
    claims: dict[tuple[str | bytes, str | None], list[Claim]] = {}
    for look in looks:
        for claim in look.claims:
            claims.setdefault((claim.contender, claim.mode), []).append(claim)
    kinds = Counter(look.kind for look in looks if look.kind != "none")
    latch = next((look.latch for look in looks if look.latch), None)
    holders = [_holder(held, quorum) for held in claims.values()]
    return {
        "name": name.decode("utf-8", "backslashreplace"),
        "kind": kinds.most_common(1)[0][0] if kinds else "latch" if latch else "none",
        "holders": holders,
        "held": _held(looks, holders, quorum),
        "waiting": max(look.all_waiting for look in looks),
        "waiters": [waiter.owner for waiter in max(looks, key=lambda look: len(look.waiters)).waiters],
        "permits": max(look.permits for look in looks) or None,
        "latch": latch and {"size": latch.size, "left": min(look.latch.left for look in looks if look.latch)},
    }


def _held(looks: list[NameLook], holders: list[dict[str, Any]], quorum: int) -> int:
    """Return how many claims a quorum has; where nodes list only some of theirs, how many a quorum counts."""
    counts = sorted((look.held for look in looks if look.held > len(look.claims)), reverse=True)
    known = len([holder for holder in holders if holder["quorum"]])
    return max(known, counts[quorum - 1]) if len(counts) >= quorum else known


def _holder(held: list[Claim], quorum: int) -> dict[str, Any]:
    lasting = sorted((claim.remaining for claim in held if claim.remaining is not None), reverse=True)
    # A claim lasts while a quorum keeps it; without a quorum, until the last node drops it.
    remaining = lasting[min(quorum, len(lasting)) - 1] if lasting else None
    # The node that knows most of the holder; one that was out of reach may have an old record.
    telling = max(held, key=lambda claim: (claim.client is not None, claim.held_since is not None))
    return {**_described(telling), "remaining": remaining, "nodes": len(held), "quorum": len(held) >= quorum}


def _described(claim: Claim) -> dict[str, Any]:
    """Return one node's claim for JSON; `since` is when the holder's client started, `held_since` when it acquired."""
    fields = ("owner", "mode", "hold_count", "held_since", "remaining")
    known = {field: getattr(claim, field) for field in fields}
    return known | {field: getattr(claim.client, field, None) for field in ("host", "pid", "program", "since")}


def _kind_of(kind: str, permits: int | None) -> str:
    """Return a kind of synchronizer, for people."""
    return f"{kind} of {permits}" if permits else kind


def _list_rows(entries: Iterable[dict[str, Any]], count: int, clock: float) -> Iterator[tuple[str, ...]]:
    """Yield the rows of `ls` at an instant in seconds since 1970, one for each holder, or one for a free name."""
    for entry in entries:
        name, kind, waiting = entry["name"], _kind_of(entry["kind"], entry["permits"]), str(entry["waiting"] or "-")
        if entry["latch"]:
            yield name, "latch", "{left} of {size} to come".format_map(entry["latch"]), "-", "-", "-", waiting
            if entry["kind"] in ("latch", "none"):
                continue
        for holder in entry["holders"]:
            process = f"{holder['host']}:{holder['pid']}" if holder["host"] else cut(holder["owner"])
            times = f" x{holder['hold_count']}" if holder["hold_count"] > 1 else ""
            # The nodes know when a hold began, except a hold younger than its client's latest announcement.
            since = holder["held_since"]
            age = None if since is None else max(clock - since, 0.0)
            nodes = f"{holder['nodes']}/{count}{'' if holder['quorum'] else ' no quorum'}"
            life = told(holder["remaining"])
            side = f"{holder['mode']} lock" if holder["mode"] else kind
            yield name, side, f"{process}{times}", told(age), nodes, life, waiting
        if not entry["holders"]:
            yield name, kind, "-", "-", "-", "-", waiting


def _more_than(limit: int) -> str:
    """Return the message that there are more names than those shown."""
    return f"there are more names than these {limit:,}: give a pattern, or raise --limit"


def ls(options: Any) -> int:
    """List the names on the nodes."""
    nodes = Nodes(options)
    view = look(nodes, encoded(options.pattern), options.limit)
    answers: list[Answer[None]] = [Answer(**node) for node in view["nodes"]]
    if options.json:
        write_json(view)
    elif view["names"]:
        from redsync.cli.tables import print_table

        print_table(_LISTED, list(_list_rows(view["names"], len(nodes.nodes), time.time())))
    if view["more"]:
        warn(_more_than(options.limit))
    elif not view["names"] and not options.json and nodes.status(answers) == FINE:
        warn(f"no locks match {shown(nodes.prefix + encoded(options.pattern))} on the nodes")
    return nodes.conclude(answers)


def top(options: Any) -> int:
    """Show the table of `ls`, redrawn continuously by rich, until Ctrl-C.

    It polls instead of subscribing: that needs no configuration, but misses holds that begin and end between two looks.
    """
    if not (sys.stdout and sys.stdout.isatty()):
        raise SetupError("needs a terminal: use `redsync ls --json`")
    from rich.live import Live

    from redsync.cli.tables import console

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
    """Return one screen of `top` at an instant in seconds since 1970; names with the most waiters come first."""
    from rich.console import Group

    from redsync.cli.tables import line, table_of

    entries, nodes = sorted(view["names"], key=lambda entry: (-entry["waiting"], entry["name"])), view["nodes"]
    held, waiting = sum(bool(entry["holders"]) for entry in entries), sum(entry["waiting"] for entry in entries)
    count = f"{len(entries)}{'+' if view['more'] else ''} name{'' if len(entries) == 1 else 's'}"
    now = time.strftime("%H:%M:%S", time.localtime(clock))
    up = sum(node["error"] is None for node in nodes)
    states = "  ".join(f"{node['node']} {state_of(node['error']) if node['error'] else 'up'}" for node in nodes)
    last = "" if entries else "no holders, no waiters"
    if up < view["quorum"]:
        last = "too few nodes answer to know what is held"
    return Group(
        line(f"redsync top  {now}  {count}, {held} held, {waiting} waiting  (Ctrl-C: quit)", "bold"),
        line(f"{up} of {len(nodes)} nodes answer: {states}", "" if up == len(nodes) else "red"),
        *(line(f"  {node['node']}: {node['error']}", "red") for node in nodes if node["error"] is not None),
        line(_more_than(len(entries)) if view["more"] else "", "dim"),
        # Each name has at least one row.
        table_of(_LISTED, _list_rows(entries[:height], len(nodes), clock), cut=True),
        line(last, "red" if entries else "dim"),
    )


def show(options: Any) -> int:
    """Show what each node keeps under one name."""
    name = encoded(options.name)
    nodes = Nodes(options)
    answers = _ask(nodes, name)
    if options.json:
        write_json({"name": options.name, "quorum": nodes.quorum, "nodes": list(map(_name_json, answers))})
    else:
        _print_name(options.name, answers, is_known=nodes.status(answers) == FINE)
    return nodes.conclude(answers)


def _ask(nodes: Nodes, name: bytes, most: int = 100) -> list[Answer[NameLook | None]]:
    """Ask each node about one name; `SetupError` if no synchronizer can have such a name."""
    try:
        asked = {name: look_command(nodes.prefix, name, most)}
    except ValueError as error:
        raise SetupError(str(error)) from None
    return nodes.ask(lambda client, tagging: look_at(client, tagging, asked).get(name))


def _name_json(answer: Answer[NameLook | None]) -> dict[str, Any]:
    look = answer.value
    if look is None:
        return {"node": answer.node, "error": answer.error, "kind": None if answer.error else "none"}
    return {
        "node": answer.node,
        "error": None,
        "kind": "latch" if look.latch and look.kind == "none" else look.kind,
        "holders": [_described(claim) for claim in look.claims],
        "held": look.held,
        "waiters": [
            {"owner": each.owner, "host": each.client and each.client.host, "pid": each.client and each.client.pid}
            for each in look.waiters
        ],
        "waiting": look.waiting,
        "permits": look.permits or None,
        "window": look.window or None,
        "latch": look.latch and asdict(look.latch),
    }


def _print_name(name: str, answers: list[Answer[NameLook | None]], *, is_known: bool) -> None:
    from redsync.cli.tables import print_table

    looks = [answer.value for answer in answers if answer.value]
    kinds = sorted({_kind(look) for look in looks} - {"free"})
    nothing = "free, no waiters" if is_known else "unknown"
    put(f"{name}: {', or '.join(kinds) or nothing}", "")
    print_table(_SHOWN, [row for answer in answers for row in _node_rows(answer)], turns=True)
    claims = [claim for look in looks for claim in look.claims]
    since = {claim.owner: claim.held_since for claim in claims if claim.held_since is not None}
    _put_people("holders", {claim.owner: claim.client for claim in claims}, since)
    _put_people("waiting", {waiter.owner: waiter.client for look in looks for waiter in look.waiters}, {})


def _kind(look: NameLook) -> str:
    kinds = [] if look.kind == "none" else [_kind_of(look.kind, look.permits)]
    return " and ".join([*kinds, "latch"] if look.latch else kinds) or "free"


def _node_rows(answer: Answer[NameLook | None]) -> list[tuple[str, ...]]:
    look = answer.value
    if answer.error:
        return [(answer.node, state_of(answer.error), *["-"] * 4)]
    if look is None:
        return [(answer.node, "nobody", *["-"] * 4)]
    rows: list[tuple[str, ...]] = []
    node, waiting = answer.node, str(look.waiting or "-")
    if look.latch:
        waits = f"{look.latch.left} of {look.latch.size} to come"
        rows.append((node, waits, "-", "-", told(look.latch.remaining), str(look.latch.waiting or "-")))
    if look.kind == "none" and rows:
        return rows
    for claim in look.claims:
        holder = who("unknown", claim.client) + (f" ({claim.mode})" if claim.mode else "")
        life = "no expiry" if claim.remaining is None else told(claim.remaining)
        rows.append((node, holder, short(claim.owner), str(claim.hold_count), life, waiting))
    if look.held > len(look.claims):
        rows.append((node, f"and {look.held - len(look.claims)} more", *["-"] * 4))
    return rows or [(node, "nobody", *["-"] * 3, waiting)]


def _put_people(title: str, people: dict[str, ClientRecord | None], since: dict[str, float]) -> None:
    if not people:
        return
    put("", f"{title}:")
    for owner, client in people.items():
        described = "an unknown process"
        if client:
            program = f" ({client.program})" if client.program else ""
            described = f"{who(owner, client)}{program}, client since {clock(client.since)}"
        put(f"  {cut(owner)}", f"    {described}")
        if owner in since:
            put(f"    holds it since {clock(since[owner])}, for {told(max(time.time() - since[owner], 0.0))}")


def take_away(options: Any) -> int:
    """Force-release one owner's claim, on all nodes."""
    name = encoded(options.name)
    nodes = Nodes(options)
    answers = _ask(nodes, name, 10_000)
    try:
        held = claims_meant(shown(encoded(options.owner)), [answer.value for answer in answers if answer.value])
    except ValueError as error:
        raise SetupError(str(error)) from None
    if not held:
        status = nodes.conclude(answers)
        warn(f"{options.owner} does not hold '{shown(options.name)}' on any node that answered")
        return status or BROKEN
    kind, claim = next((each for each in held if each[1].client), held[0])
    if not options.yes:
        if not sys.stdin.isatty():
            raise SetupError("can't ask for confirmation, as standard input is not a terminal: pass --yes")
        question = f"Release the {kind} '{options.name}' held by {who(claim.owner, claim.client)}?"
        tell(f"{shown(question)}\nIt may still be at work until its next renewal or release. [y/N] ")
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise SetupError("nothing was changed", BROKEN)
    commands = break_commands(nodes.prefix, name, held)
    done = nodes.ask(lambda client, tagging: 1 in execute(client, tagging, commands))
    broken = sum(each.value is True for each in done)
    if options.json:
        each_node = [{"node": each.node, "error": each.error, "broken": each.value is True} for each in done]
        write_json({"name": options.name, "owner": claim.owner, "kind": kind, "nodes": each_node})
    else:
        put(f"released on {broken} of {len(done)} nodes")
    return nodes.conclude(done) or (FINE if broken else BROKEN)
