"""`redsync ls`, `show` and `break`: what the nodes keep, and taking a claim away."""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

from redsync.cli.asking import (
    FINE,
    FOUND_TROUBLE,
    USAGE,
    Answer,
    Nodes,
    SetupError,
    execute,
    find_names,
    look_at,
)
from redsync.cli.writing import complain, shown, table, told, who, write_json

if TYPE_CHECKING:
    from redsync._core.presence import Claim
    from redsync._protocols.name_survey import NameLook

__all__ = ["break_", "encoded", "list_rows", "listed", "ls", "show", "survey"]

HEADINGS = ("NAME", "KIND", "HELD BY", "NODES", "LIFE LEFT", "WAITING")


def encoded(text: str) -> bytes:
    """Return a name or pattern of the command line as the bytes that were typed."""
    return text.encode("utf-8", "surrogateescape")


def survey(nodes: Nodes, pattern: bytes, most: int = 100) -> list[Answer[dict[bytes, NameLook]]]:
    """Return what each node keeps under the names that match a pattern."""
    return nodes.ask(
        lambda client: look_at(client, nodes.prefix, sorted(find_names(client, nodes.prefix, pattern)), most)
    )


def listed(nodes: Nodes, answers: list[Answer[dict[bytes, NameLook]]]) -> list[dict[str, Any]]:
    """Return what a survey says of each name, by name; nothing in it depends on which node said it."""
    names = sorted({name for answer in answers for name in answer.value or ()})
    return [
        _summary(
            name, [answer.value[name] for answer in answers if answer.value and name in answer.value], nodes.quorum
        )
        for name in names
    ]


def _summary(name: bytes, looks: list[NameLook], quorum: int) -> dict[str, Any]:
    claims: dict[tuple[str, str | None], list[Claim]] = {}
    for look in looks:
        for claim in look.claims:
            claims.setdefault((claim.owner, claim.mode), []).append(claim)
    kinds = Counter(look.kind for look in looks if look.kind != "none")
    latch = next((look.latch for look in looks if look.latch), None)
    return {
        "name": name.decode("utf-8", "backslashreplace"),
        "kind": kinds.most_common(1)[0][0] if kinds else "latch" if latch else "none",
        "holders": [_holder(held, quorum) for held in claims.values()],
        "waiting": max(look.waiting + (look.latch.waiting if look.latch else 0) for look in looks),
        "permits": max(look.permits for look in looks) or None,
        "latch": latch and {"size": latch.size, "left": min(look.latch.left for look in looks if look.latch)},
    }


def _holder(held: list[Claim], quorum: int) -> dict[str, Any]:
    lasting = sorted((claim.remaining for claim in held if claim.remaining is not None), reverse=True)
    # What counts is for how long a quorum keeps it; of one that has no quorum, when the last trace is gone.
    remaining = lasting[min(quorum, len(lasting)) - 1] if lasting else None
    return {
        **_described(next((claim for claim in held if claim.client), held[0])),
        "remaining": remaining,
        "nodes": len(held),
        "quorum": len(held) >= quorum,
    }


def _described(claim: Claim) -> dict[str, Any]:
    client = claim.client
    return {
        "owner": claim.owner,
        "mode": claim.mode,
        "hold_count": claim.hold_count,
        "host": client and client.host,
        "pid": client and client.pid,
        "program": client and client.program,
        "since": client and client.since,
        "remaining": claim.remaining,
    }


def list_rows(entries: list[dict[str, Any]], count: int) -> list[tuple[str, ...]]:
    """Return the rows of `ls`: one for each holder, or one for a name that nobody holds."""
    rows: list[tuple[str, ...]] = []
    for entry in entries:
        kind = f"{entry['kind']} of {entry['permits']}" if entry["permits"] else entry["kind"]
        waiting = str(entry["waiting"] or "-")
        if entry["latch"]:
            waits = f"{entry['latch']['left']} of {entry['latch']['size']} to come"
            rows.append((shown(entry["name"]), "latch", waits, "-", "-", waiting))
            if entry["kind"] in ("latch", "none"):
                continue
        holders = entry["holders"] or [None]
        rows += [(shown(entry["name"]), kind, *_holder_cells(holder, count), waiting) for holder in holders]
    return rows


def _holder_cells(holder: dict[str, Any] | None, count: int) -> tuple[str, str, str]:
    if holder is None:
        return "-", "-", "-"
    process = f"{holder['host']}:{holder['pid']}" if holder["host"] else holder["owner"]
    mode = f" ({holder['mode']})" if holder["mode"] else ""
    note = "" if holder["quorum"] else " no quorum"
    return shown(process) + mode, f"{holder['nodes']}/{count}{note}", told(holder["remaining"])


def _trouble(answers: list[Answer[Any]]) -> list[dict[str, Any]]:
    return [{"node": answer.node, "error": answer.error} for answer in answers]


def ls(options: Any) -> int:
    """List the names of which nodes keep something."""
    with Nodes.chosen(options) as nodes:
        answers = survey(nodes, encoded(options.pattern))
        entries = listed(nodes, answers)
        if options.json:
            write_json({"nodes": _trouble(answers), "quorum": nodes.quorum, "names": entries})
        elif entries:
            print("\n".join(table(HEADINGS, list_rows(entries, len(nodes.nodes)))))
        complain(answers)
        return nodes.status(answers)


def show(options: Any) -> int:
    """Show what each node keeps under one name."""
    name = encoded(options.name)
    with Nodes.chosen(options) as nodes:
        answers = nodes.ask(lambda client: look_at(client, nodes.prefix, [name]).get(name))
        if options.json:
            write_json({"name": options.name, "quorum": nodes.quorum, "nodes": [_shown_node(a) for a in answers]})
        else:
            rows = [row for answer in answers for row in _show_rows(answer)]
            headings = ("NODE", "KIND", "HELD BY", "OWNER", "SINCE", "COUNT", "LIFE LEFT", "WAITING")
            print("\n".join(table(headings, rows)))
            _print_waiters(answers)
        complain(answers)
        return nodes.status(answers)


def _shown_node(answer: Answer[NameLook | None]) -> dict[str, Any]:
    look = answer.value
    if look is None:
        return {"node": answer.node, "error": answer.error, "kind": None if answer.error else "none"}
    latch = look.latch
    waiters = [
        {"owner": w.owner, "host": w.client and w.client.host, "pid": w.client and w.client.pid} for w in look.waiters
    ]
    return {
        "node": answer.node,
        "error": None,
        "kind": "latch" if latch and look.kind == "none" else look.kind,
        "holders": [_described(claim) for claim in look.claims],
        "held": look.held,
        "waiters": waiters,
        "waiting": look.waiting,
        "permits": look.permits or None,
        "window": look.window or None,
        "latch": latch
        and {"size": latch.size, "left": latch.left, "remaining": latch.remaining, "waiting": latch.waiting},
    }


def _show_rows(answer: Answer[NameLook | None]) -> list[tuple[str, ...]]:
    look = answer.value
    if look is None:
        return [(answer.node, "?" if answer.error else "nothing", *["-"] * 6)]
    rows: list[tuple[str, ...]] = []
    if look.latch:
        waits = f"{look.latch.left} of {look.latch.size} to come"
        life = told(look.latch.remaining)
        rows.append((answer.node, "latch", waits, "-", "-", "-", life, str(look.latch.waiting or "-")))
    if look.kind == "none" and rows:
        return rows
    kind = f"{look.kind} of {look.permits}" if look.permits else look.kind
    waiting = str(look.waiting or "-")
    for claim in look.claims:
        process = who("?", claim.client) + (f" ({claim.mode})" if claim.mode else "")
        since = _clock(claim.client.since) if claim.client else "-"
        life = told(claim.remaining)
        rows.append((answer.node, kind, process, shown(claim.owner), since, str(claim.hold_count), life, waiting))
    if look.held > len(look.claims):
        rows.append((answer.node, kind, f"and {look.held - len(look.claims)} more", *["-"] * 5))
    return rows or [(answer.node, "free" if kind == "none" else kind, *["-"] * 5, waiting)]


def _clock(since: float) -> str:
    import time

    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(since))
    except (OverflowError, ValueError, OSError):  # anybody may write a record
        return "-"


def _print_waiters(answers: list[Answer[NameLook | None]]) -> None:
    waiters = {waiter.owner: waiter for answer in answers if answer.value for waiter in answer.value.waiters}
    if waiters:
        print("\nwaiting:")
        for waiter in waiters.values():
            print(f"  {who('?', waiter.client)}  {shown(waiter.owner)}")


def break_(options: Any) -> int:
    """Take a claim away from one owner, on all nodes."""
    name, owner = encoded(options.name), encoded(options.owner)
    with Nodes.chosen(options) as nodes:
        answers = nodes.ask(lambda client: look_at(client, nodes.prefix, [name], most=10_000).get(name))
        held = [
            (look.kind, claim)
            for answer in answers
            for look in [answer.value]
            if look
            for claim in look.claims
            if claim.owner == options.owner
        ]
        if not held:
            complain(answers)
            print(
                f"{shown(options.owner)} does not hold {shown(options.name)!r} on any node that answered",
                file=sys.stderr,
            )
            return nodes.status(answers) or FOUND_TROUBLE
        kind, claim = next((each for each in held if each[1].client), held[0])
        if not options.yes:
            _confirm(f"take the {kind} {shown(options.name)!r} away from {who(options.owner, claim.client)}?")
        return _take_away(nodes, options, name, kind, owner)


def _confirm(question: str) -> None:
    if not sys.stdin.isatty():
        raise SetupError("nobody to ask: standard input is no terminal; say --yes if you mean it", USAGE)
    print(
        f"{question}\nIt may still be at work and will be told that it lost its hold, but only when it looks. [y/N] ",
        end="",
        file=sys.stderr,
        flush=True,
    )
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise SetupError("nothing was changed", FOUND_TROUBLE)


def _take_away(nodes: Nodes, options: Any, name: bytes, kind: str, owner: bytes) -> int:
    from redsync._protocols.name_survey import break_commands

    commands = break_commands(nodes.prefix, name, kind, owner)
    answers = nodes.ask(lambda client: 1 in execute(client, commands))
    broken = sum(answer.value is True for answer in answers)
    if options.json:
        nodes_json = [
            {"node": answer.node, "error": answer.error, "broken": answer.value is True} for answer in answers
        ]
        write_json({"name": options.name, "owner": options.owner, "kind": kind, "nodes": nodes_json})
    else:
        print(f"taken away on {broken} of {len(answers)} nodes")
    complain(answers)
    return nodes.status(answers) or (FINE if broken else FOUND_TROUBLE)
