"""Outages that outlast connections, and nodes that answer errors or come back with older data: when, and how.

Each client is now and then cut off from a majority of the nodes or from all, in one direction or both, for 5 to 60 s: a
client abandons a connection after 10 s of silence, but its data may still arrive. At most a minority of the nodes is in
trouble at a time. Like `plan` for the other soak, a pure function of the seed.
"""

import random
from collections.abc import Iterator

from redsync.testing.harness.nemesis import Fault
from tests.soak.plan import Trouble
from tests.soak.troubles import CLIENTS, LATE_CLIENTS, MINORITY, NODES, Part

LEASE = 8.0
"""Seconds: long enough that another client can exploit a claim removed by mistake before it is renewed."""

CALM = 12.0
"""Seconds at the end without any fault."""

_ERRORS = {
    "answers BUSY": ("busy", "idle"),
    "answers MISCONF": ("misconfigure", "configure"),
    "answers OOM": ("fill_memory", "free_memory"),
    "answers READONLY": ("demote", "promote"),
    "answers LOADING": ("load", None),
}
_OLDER = "restarts with older data"
_EMPTY = "restarts empty"
_HANGS = "hangs until it is abandoned"


def _cut(rng: random.Random, at: float, client: int, longest: float) -> Part:
    until = at + min(rng.choice([rng.uniform(5.0, 60.0), rng.uniform(11.0, 18.0)]), longest)
    nodes = rng.sample(range(NODES), rng.choice([NODES - MINORITY, NODES, NODES]))
    action = rng.choice(["cut", "cut", "cut_requests", "cut_replies"])
    begins = (Fault(at, action, (client, node)) for node in nodes)
    ends = (Fault(until, "mend", (client, node)) for node in nodes)
    return Part(client, (*begins, *ends), until + rng.uniform(3.0, 15.0))


def _partitions(seconds: float, rng: random.Random) -> Iterator[Trouble]:
    for client in range(CLIENTS):
        at = rng.uniform(2.0, 12.0)
        while seconds - at > 5.0:
            part = _cut(rng, at, client, seconds - at)
            yield Trouble("client cut off by the router", [part])
            at = part.until


def _trouble(rng: random.Random, kind: str, at: float, node: int) -> Part:
    if kind in _ERRORS:
        begin, end = _ERRORS[kind]
        lasts = rng.uniform(0.3, 4.0)
        if end is None:
            return Part(node, (Fault(at, begin, (node,), lasts),), at + lasts + 1.0)
        return Part(node, (Fault(at, begin, (node,)), Fault(at + lasts, end, (node,))), at + lasts + 0.5)
    if kind == _HANGS:
        until = at + rng.uniform(10.5, 20.0)
        return Part(node, (Fault(at, "pause", (node,)), Fault(until, "resume", (node,))), until + 0.5)
    down = rng.uniform(0.02, 1.0)
    guard = LEASE + rng.choice([0.5, LATE_CLIENTS])
    if kind == _EMPTY:
        return Part(node, (Fault(at, "kill", (node,)), Fault(at + down, "restart", (node,))), at + down + guard)
    killed = at + rng.uniform(0.1, 6.0)
    faults = Fault(at, "save", (node,)), Fault(killed, "kill", (node,)), Fault(killed + down, "restart_older", (node,))
    return Part(node, faults, killed + down + guard)


def _node_troubles(seconds: float, rng: random.Random) -> Iterator[Trouble]:
    whole_at = [0.0] * NODES
    free_at = [rng.uniform(0.5, 3.0) for _ in range(MINORITY)]
    kinds: list[str] = []
    while min(free_at) < seconds:
        kinds = kinds or rng.sample([*_ERRORS, *_ERRORS, _OLDER, _OLDER, _EMPTY, _HANGS], 2 * len(_ERRORS) + 4)
        at, kind = min(free_at), kinds.pop()
        node = rng.choice([node for node in range(NODES) if whole_at[node] <= at])
        part = _trouble(rng, kind, at, node)
        slot = free_at.index(at)
        if part.until > seconds:
            free_at[slot] = at + 0.5
            continue
        whole_at[node] = part.until
        free_at[slot] = part.until + rng.uniform(0.1, 3.0)
        yield Trouble(f"node {kind}", [part])


def plan(seed: object, seconds: float) -> list[Trouble]:
    """Return the troubles of a run; all end some time before the run does."""
    partitions = _partitions(seconds - CALM, random.Random(f"{seed} partitions"))
    return [*partitions, *_node_troubles(seconds - CALM, random.Random(f"{seed} nodes"))]
