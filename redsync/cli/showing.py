"""`redsync show`: what each node keeps under one name."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from redsync.cli.arguments import encoded
from redsync.cli.asking import Answer, Nodes, look_at, questions
from redsync.cli.exits import FINE, state_of
from redsync.cli.listing import described
from redsync.cli.output import put, write_json
from redsync.cli.writing import clock, complain, print_table, short, told, who

if TYPE_CHECKING:
    from redsync._core.presence import ClientRecord
    from redsync._protocols.name_survey import NameLook

__all__ = ["show"]

_HEADINGS = ("NODE", "HELD BY", "OWNER", "COUNT", "LIFE LEFT", "WAITING")


def show(options: Any) -> int:
    """Show what each node keeps under one name."""
    name = encoded(options.name)
    with Nodes.chosen(options) as nodes:
        asked = questions(nodes.prefix, [name])
        answers = nodes.ask(lambda client: look_at(client, asked).get(name))
        if options.json:
            write_json({"name": options.name, "quorum": nodes.quorum, "nodes": list(map(_as_json, answers))})
        else:
            _print(options.name, answers, is_known=nodes.status(answers) == FINE)
        complain(answers)
        return nodes.status(answers)


def _as_json(answer: Answer[NameLook | None]) -> dict[str, Any]:
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
        "holders": [described(claim) for claim in look.claims],
        "held": look.held,
        "waiters": waiters,
        "waiting": look.waiting,
        "permits": look.permits or None,
        "window": look.window or None,
        "latch": latch
        and {"size": latch.size, "left": latch.left, "remaining": latch.remaining, "waiting": latch.waiting},
    }


def _print(name: str, answers: list[Answer[NameLook | None]], *, is_known: bool) -> None:
    looks = [answer.value for answer in answers if answer.value]
    kinds = sorted({_kind(look) for look in looks} - {"free"})
    nothing = "free, no waiters" if is_known else "unknown"
    put(f"{name}: {', or '.join(kinds) or nothing}", "")
    # Each row shows its kind only if nodes keep different kinds under this name.
    rows = [row for answer in answers for row in _rows(answer, with_kind=len(kinds) > 1)]
    print_table(_HEADINGS, rows)
    claims = [claim for look in looks for claim in look.claims]
    since = {claim.owner: claim.held_since for claim in claims if claim.held_since is not None}
    _print_people("holders", {claim.owner: claim.client for claim in claims}, since)
    _print_people("waiting", {waiter.owner: waiter.client for look in looks for waiter in look.waiters}, {})


def _kind(look: NameLook) -> str:
    kinds = [] if look.kind == "none" else [f"{look.kind} of {look.permits}" if look.permits else look.kind]
    return " and ".join([*kinds, "latch"] if look.latch else kinds) or "free"


def _rows(answer: Answer[NameLook | None], *, with_kind: bool) -> list[tuple[str, ...]]:
    look = answer.value
    if answer.error:
        return [(answer.node, state_of(answer.error), *["-"] * 4)]
    if look is None:
        return [(answer.node, "nobody", *["-"] * 4)]
    rows: list[tuple[str, ...]] = []
    node = f"{answer.node} ({_kind(look)})" if with_kind else answer.node
    if look.latch:
        waits = f"{look.latch.left} of {look.latch.size} to come"
        rows.append((node, waits, "-", "-", told(look.latch.remaining), str(look.latch.waiting or "-")))
    if look.kind == "none" and rows:
        return rows
    waiting = str(look.waiting or "-")
    for claim in look.claims:
        process = who("unknown", claim.client) + (f" ({claim.mode})" if claim.mode else "")
        rows.append((node, process, short(claim.owner), str(claim.hold_count), told(claim.remaining), waiting))
    if look.held > len(look.claims):
        rows.append((node, f"and {look.held - len(look.claims)} more", *["-"] * 4))
    return rows or [(node, "nobody", *["-"] * 3, waiting)]


def _print_people(title: str, people: dict[str, ClientRecord | None], since: dict[str, float]) -> None:
    if not people:
        return
    put("", f"{title}:")
    for owner, client in people.items():
        process = "an unknown process"
        if client:
            program = f" ({client.program})" if client.program else ""
            process = f"{who(owner, client)}{program}, client since {clock(client.since)}"
        put(f"  {owner}", f"    {process}")
        if owner in since:
            put(f"    holds it since {clock(since[owner])}, for {told(max(time.time() - since[owner], 0.0))}")
