"""`redsync ls`: the names on the nodes, with their holders, one sorted page at a time."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from redsync.cli.arguments import encoded
from redsync.cli.asking import Answer, Nodes
from redsync.cli.exits import FINE
from redsync.cli.output import warn, write_json_members
from redsync.cli.pages import PAGE, Looks, Pages
from redsync.cli.writing import PagedTable, complain, process, told

if TYPE_CHECKING:
    from redsync._core.presence import Claim
    from redsync._protocols.name_survey import NameLook

__all__ = ["HEADINGS", "described", "held_by", "kind_of", "list_rows", "listed", "ls", "more_than", "to_come"]

HEADINGS = ("NAME", "KIND", "HELD BY", "NODES", "LIFE LEFT", "WAITING")


def listed(looks: Looks, quorum: int) -> list[dict[str, Any]]:
    """Return a summary of each name over all nodes, sorted by name; it does not say which node knows what."""
    names = sorted({name for each in looks for name in each})
    return [_summary(name, [each[name] for each in looks if name in each], quorum) for name in names]


def _summary(name: bytes, looks: list[NameLook], quorum: int) -> dict[str, Any]:
    claims: dict[tuple[str, str | None], list[Claim]] = {}
    for look in looks:
        for claim in look.claims:
            claims.setdefault((claim.owner, claim.mode), []).append(claim)
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
    return {
        **described(_most_telling(held)),
        "remaining": remaining,
        "nodes": len(held),
        "quorum": len(held) >= quorum,
    }


def _most_telling(held: list[Claim]) -> Claim:
    """Return the claim of the node that knows most of the holder; one that was out of reach may have an old record."""
    return max(held, key=lambda claim: (claim.client is not None, claim.held_since is not None))


def described(claim: Claim) -> dict[str, Any]:
    """Return one node's claim for JSON; `since` is when the holder's client started, `held_since` when it acquired."""
    client = claim.client
    return {
        "owner": claim.owner,
        "mode": claim.mode,
        "hold_count": claim.hold_count,
        "host": client and client.host,
        "pid": client and client.pid,
        "program": client and client.program,
        "since": client and client.since,
        "held_since": claim.held_since,
        "remaining": claim.remaining,
    }


def kind_of(entry: dict[str, Any], holder: dict[str, Any] | None = None) -> str:
    """Return a name's kind of synchronizer, for people; of a read-write lock, the side that is held."""
    if holder and holder["mode"]:
        return f"{holder['mode']} lock"
    return f"{entry['kind']} of {entry['permits']}" if entry["permits"] else str(entry["kind"])


def held_by(holder: dict[str, Any]) -> str:
    """Return a holder and its hold count, for people."""
    times = f" x{holder['hold_count']}" if holder["hold_count"] > 1 else ""
    return f"{process(holder)}{times}"


def to_come(latch: dict[str, Any]) -> str:
    """Return a latch's count, for people."""
    return f"{latch['left']} of {latch['size']} to come"


def list_rows(entries: Iterable[dict[str, Any]], count: int) -> Iterator[tuple[tuple[str, ...], dict[str, Any] | None]]:
    """Yield the rows of `ls`, one for each holder, or one for a free name; each with its holder."""
    for entry in entries:
        name, waiting = entry["name"], str(entry["waiting"] or "-")
        if entry["latch"]:
            yield (name, "latch", to_come(entry["latch"]), "-", "-", waiting), None
            if entry["kind"] in ("latch", "none"):
                continue
        for holder in entry["holders"]:
            nodes = f"{holder['nodes']}/{count}{'' if holder['quorum'] else ' no quorum'}"
            row = name, kind_of(entry, holder), held_by(holder), nodes, told(holder["remaining"]), waiting
            yield row, holder
        if not entry["holders"]:
            yield (name, kind_of(entry), "-", "-", "-", waiting), None


def more_than(limit: int) -> str:
    """Return the message that there are more names than those shown."""
    return f"there are more names than these {limit:,}: give a pattern, or raise --limit"


class _Listing:
    """The names, page by page, up to a limit.

    Attributes:
        has_more: True if there are more names than the limit.
        is_empty: True while no name was found.
    """

    def __init__(self, nodes: Nodes, pattern: str, limit: int | None) -> None:
        self.has_more = False
        self.is_empty = True
        self._quorum = nodes.quorum
        self._limit = limit
        # One name beyond the limit shows that there are more.
        self._pages = Pages(nodes, encoded(pattern), PAGE if limit is None else min(PAGE, limit + 1))

    def __iter__(self) -> Iterator[list[dict[str, Any]]]:
        left = self._limit
        for looks in self._pages:
            entries = listed(looks, self._quorum)
            self.is_empty = self.is_empty and not entries
            yield entries[:left]
            if left is not None:
                self.has_more = len(entries) > left
                if self.has_more:
                    return
                left -= len(entries)

    @property
    def answers(self) -> list[Answer[Any]]:
        return self._pages.answers


def _members(nodes: Nodes, listing: _Listing) -> Iterator[tuple[str, Any]]:
    """Yield the members of the JSON object; the nodes come last, because they may fail on the way."""
    yield "quorum", nodes.quorum
    yield "names", (entry for entries in listing for entry in entries)
    yield "more", listing.has_more
    yield "nodes", [{"node": answer.node, "error": answer.error} for answer in listing.answers]


def ls(options: Any) -> int:
    """List the names on the nodes."""
    with Nodes.chosen(options) as nodes:
        listing = _Listing(nodes, options.pattern, options.limit)
        if options.json:
            write_json_members(_members(nodes, listing))
        else:
            table = PagedTable(HEADINGS, cut=(0, 2))
            for entries in listing:
                table.put([row for row, _ in list_rows(entries, len(nodes.nodes))])
        if listing.has_more:
            warn(more_than(options.limit))
        elif listing.is_empty and sys.stdout.isatty() and not options.json and nodes.status(listing.answers) == FINE:
            warn("no such names on the nodes")
        complain(listing.answers)
        return nodes.status(listing.answers)
