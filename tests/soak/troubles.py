"""The troubles of nodes, connections and clients: each kind, with its repair.

A *part* is the trouble of a target, from its first fault until it is healthy again. A node that forgot its claims,
because it was restarted or flushed, is not healthy before its restart guard is over.

All instants are seconds from the start of the run.
"""

import itertools
import random
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from tests.chaos.nemesis import Fault

LEASE = 2.0
GUARD = LEASE  # of the clients, which derive it from their lease
NODES, MINORITY = 5, 2
CLIENTS = 4
PROXIED = (2, 3)  # the clients with a proxy before each node; the others race at full speed

LATE_CLIENTS = 2.2
"""Seconds that clients may take a restarted node for young after its guard: uptimes are whole seconds, at times one too
many, and a client that could not connect tries again with pauses of up to a second."""


class Part(NamedTuple):
    """The trouble of one target or several.

    Attributes:
        faults: The faults, including the repair.
        until: The instant from which all targets are healthy again.
    """

    faults: tuple[Fault, ...]
    until: float


Make: TypeAlias = Callable[[random.Random, float, int], Part]
MakeJoint: TypeAlias = Callable[[random.Random, float, Sequence[int]], Part]


# Nodes that forget.


def _forgive(rng: random.Random) -> float:
    """Return for how long a node that forgot is not healthy: its guard, and at times until the last client agrees."""
    return GUARD + rng.choice([0.05, 1.0, LATE_CLIENTS])


def _killed(at: float, node: int, down: float) -> tuple[Fault, Fault]:
    return Fault(at, "kill", (node,)), Fault(at + down, "restart", (node,))


def _restart(rng: random.Random, at: float, node: int) -> Part:
    faults = _killed(at, node, rng.uniform(0.02, 0.4))
    return Part(faults, faults[-1].at + _forgive(rng))


def _restart_twice(rng: random.Random, at: float, node: int) -> Part:
    first = _killed(at, node, rng.uniform(0.02, 0.2))
    again = _killed(first[-1].at + rng.uniform(0.2, GUARD - 0.2), node, rng.uniform(0.02, 0.2))
    return Part(first + again, again[-1].at + _forgive(rng))


def _hang_and_die(rng: random.Random, at: float, node: int) -> Part:
    faults = _killed(at + rng.uniform(0.2, 1.2 * LEASE), node, rng.uniform(0.02, 0.4))
    return Part((Fault(at, "pause", (node,)), *faults), faults[-1].at + _forgive(rng))


def _flush(rng: random.Random, at: float, node: int) -> Part:
    return Part((Fault(at, "flush_all", (node,)),), at + _forgive(rng))


# Nodes that remember, but do not answer.


def _hang(shortest: float, longest: float) -> Make:
    def make(rng: random.Random, at: float, node: int) -> Part:
        until = at + rng.uniform(shortest, longest)
        return Part((Fault(at, "pause", (node,)), Fault(until, "resume", (node,))), until + 0.1)

    return make


def _partition(action: str, longest: float = 1.5 * LEASE, values: tuple[float, float] | None = None) -> Make:
    """Return the trouble that some clients have with their connections to one node."""

    def make(rng: random.Random, at: float, node: int) -> Part:
        until = at + rng.uniform(0.1, longest)
        clients = rng.sample(PROXIED, rng.randint(1, len(PROXIED)))
        value = None if values is None else rng.uniform(*values)
        begins = (Fault(at, action, (client, node), value) for client in clients)
        ends = (Fault(until, "heal", (client, node)) for client in clients)
        return Part((*begins, *ends), until + 0.3)

    return make


# Nodes that do harm only together.


def _hanging(node: int, at: float, until: float) -> tuple[Fault, ...]:
    return Fault(at, "pause", (node,)), Fault(until, "resume", (node,))


def _cut_off(node: int, at: float, until: float) -> tuple[Fault, ...]:
    begins = (Fault(at, "drop_requests", (client, node)) for client in PROXIED)
    return (*begins, *(Fault(until, "heal", (client, node)) for client in PROXIED))


def _forget_after(away: Callable[[int, float, float], tuple[Fault, ...]], forget: Make) -> MakeJoint:
    """Return the trouble that guards exist for: claims are on no more than a quorum, most of which forgets them.

    While some nodes are away, claims are made on the others. As soon as the former are back, and before they learn
    those claims, some of the latter forget. Never is more than a minority out, yet only one of all nodes knows of a
    hold that is still believed.
    """

    def make(rng: random.Random, at: float, nodes: Sequence[int]) -> Part:
        back_at = at + rng.uniform(0.3, 0.6) * LEASE
        forgets_at = back_at + rng.uniform(0.0, 0.05)
        absences = [away(node, at, back_at) for node in nodes[:MINORITY]]
        parts = [forget(rng, forgets_at, node) for node in nodes[MINORITY : 2 * MINORITY]]
        faults = itertools.chain(*absences, *(part.faults for part in parts))
        return Part(tuple(faults), max(part.until for part in parts))

    return make


def _restart_at_once(rng: random.Random, at: float, node: int) -> Part:
    faults = _killed(at, node, 0.02)
    return Part(faults, faults[-1].at + _forgive(rng))


# Clients.


def _kill_client(rng: random.Random, at: float, client: int) -> Part:
    until = at + rng.uniform(0.1, 1.0)
    return Part((Fault(at, "kill_client", (client,)), Fault(until, "start_client", (client,))), until)


def _stop_client(shortest: float, longest: float) -> Make:
    def make(rng: random.Random, at: float, client: int) -> Part:
        until = at + rng.uniform(shortest, longest)
        return Part((Fault(at, "stop_client", (client,)), Fault(until, "continue_client", (client,))), until)

    return make


def isolate(rng: random.Random, at: float, client: int) -> Part:
    """Cut a client off from a majority at least: it must lose its holds, and know it."""
    until = at + rng.uniform(1.1, 2.0) * LEASE
    nodes = rng.sample(range(NODES), rng.randint(NODES - MINORITY, NODES))
    action = rng.choice(["blackhole", "drop_requests", "drop_replies"])
    begins = (Fault(at, action, (client, node)) for node in nodes)
    ends = (Fault(until, "heal", (client, node)) for node in nodes)
    return Part((*begins, *ends), until)


# All kinds, by their name in the report.

NODE_TROUBLES: dict[str, Make] = {
    "node restarted empty": _restart,
    "node restarted again within the guard": _restart_twice,
    "node hangs, then dies": _hang_and_die,
    "node hangs": _hang(0.05, 0.9),
    "node hangs for longer than the lease": _hang(1.1 * LEASE, 2.5 * LEASE),
    "node hangs until it is abandoned": _hang(10.5, 12.0),  # a connection is replaced after 10 s of silence
    "node slow": _partition("delay", values=(0.02, 0.3)),
    "requests dropped": _partition("drop_requests"),
    "replies dropped": _partition("drop_replies"),
    "partition": _partition("blackhole"),
    "half a reply": _partition("half_replies", 0.5),
    "FLUSHALL": _flush,
}

JOINT_TROUBLES: dict[str, MakeJoint] = {
    "nodes hang, then others restart": _forget_after(_hanging, _restart_at_once),
    "nodes cut off, then others restart": _forget_after(_cut_off, _restart_at_once),
    "nodes hang, then others are flushed": _forget_after(_hanging, _flush),
    "nodes cut off, then others are flushed": _forget_after(_cut_off, _flush),
}

CLIENT_TROUBLES: dict[str, Make] = {
    "client killed": _kill_client,
    "client stopped": _stop_client(0.1, 1.5),
    "client stopped for longer than the lease": _stop_client(1.1 * LEASE, 2.5 * LEASE),
    "client cut off from a majority": isolate,
}
