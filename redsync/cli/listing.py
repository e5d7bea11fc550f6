"""`redsync ls`: what the nodes keep, under which names."""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

from redsync.cli.arguments import encoded
from redsync.cli.asking import Answer, Nodes, find_names, look_at
from redsync.cli.exits import FINE
from redsync.cli.output import warn, write_json
from redsync.cli.writing import complain, print_table, process, told

if TYPE_CHECKING:
    from redsync._core.presence import Claim
    from redsync._protocols.name_survey import NameLook

__all__ = ["HEADINGS", "described", "held_by", "kind_of", "list_rows", "listed", "ls", "survey", "to_come"]

HEADINGS = ("NAME", "KIND", "HELD BY", "NODES", "LIFE LEFT", "WAITING")


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
        **described(next((claim for claim in held if claim.client), held[0])),
        "remaining": remaining,
        "nodes": len(held),
        "quorum": len(held) >= quorum,
    }


def described(claim: Claim) -> dict[str, Any]:
    """Return one node's claim as JSON tells it; `since` is when the holder's client was made."""
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


def kind_of(entry: dict[str, Any], holder: dict[str, Any] | None = None) -> str:
    """Return what kind of synchronizer a name is, for people; which side of it, if somebody holds one."""
    if holder and holder["mode"]:
        return f"{holder['mode']} lock"
    return f"{entry['kind']} of {entry['permits']}" if entry["permits"] else str(entry["kind"])


def held_by(holder: dict[str, Any]) -> str:
    """Return who holds something, and how many times, for people."""
    times = f" x{holder['hold_count']}" if holder["hold_count"] > 1 else ""
    return f"{process(holder)}{times}"


def to_come(latch: dict[str, Any]) -> str:
    """Return what a latch waits for, for people."""
    return f"{latch['left']} of {latch['size']} to come"


def list_rows(entries: list[dict[str, Any]], count: int) -> list[tuple[str, ...]]:
    """Return the rows of `ls`: one for each holder, or one for a name that nobody holds."""
    rows: list[tuple[str, ...]] = []
    for entry in entries:
        name, waiting = entry["name"], str(entry["waiting"] or "-")
        if entry["latch"]:
            rows.append((name, "latch", to_come(entry["latch"]), "-", "-", waiting))
            if entry["kind"] in ("latch", "none"):
                continue
        for holder in entry["holders"]:
            nodes = f"{holder['nodes']}/{count}{'' if holder['quorum'] else ' no quorum'}"
            rows.append((name, kind_of(entry, holder), held_by(holder), nodes, told(holder["remaining"]), waiting))
        if not entry["holders"]:
            rows.append((name, kind_of(entry), "-", "-", "-", waiting))
    return rows


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
            print_table(HEADINGS, list_rows(entries, len(nodes.nodes)), cut=(0, 2))
        elif sys.stdout.isatty() and nodes.status(answers) == FINE:
            warn("nothing is kept under any such name")
        complain(answers)
        return nodes.status(answers)
