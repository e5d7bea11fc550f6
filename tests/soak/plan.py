"""The schedule of a run: each trouble and its time, as a pure function of the seed.

Troubles of nodes come in rounds: two nodes at most are in trouble, and the next round begins when they are healthy
again. This keeps redsync's condition: a majority is always healthy. At the same time one client after the other has
trouble. Kinds are dealt like cards, so that each comes up once before any comes up again.

All instants are seconds from the start of the run; the nemesis never lets two faults come closer than planned here.
"""

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tests.chaos.nemesis import Fault
from tests.soak.troubles import CLIENT_TROUBLES, CLIENTS, JOINT_TROUBLES, NODE_TROUBLES, NODES, PROXIED, Part, isolate

GAP = 0.6
"""Seconds at most between two rounds."""

PLACE_KEPT = 6.0
"""Seconds before the end from which no client is killed: nodes keep the place of a dead waiter for 5 s."""


class Trouble(NamedTuple):
    """One dealt card.

    Attributes:
        kind: Its name in the report.
        part: Its faults, on all its targets.
    """

    kind: str
    part: Part


def _deal(rng: random.Random, kinds: Sequence[str]) -> Iterator[str]:
    """Yield each kind once, and then again and again."""
    while True:
        yield from rng.sample(kinds, len(kinds))


def _round(rng: random.Random, at: float, alone: Iterator[str], any_kind: Iterator[str]) -> list[Trouble]:
    """Return the troubles of a minority: two kinds on a node each, or one of those that need several nodes."""
    kind = next(any_kind)
    nodes = rng.sample(range(NODES), NODES)
    if kind in JOINT_TROUBLES:
        return [Trouble(kind, JOINT_TROUBLES[kind](rng, at, nodes))]
    later = at + rng.uniform(0.0, 1.0)
    return [
        Trouble(each, NODE_TROUBLES[each](rng, begin, node))
        for each, begin, node in ((kind, at, nodes[0]), (next(alone), later, nodes[1]))
    ]


def _node_troubles(seconds: float, rng: random.Random) -> Iterator[Trouble]:
    alone = _deal(rng, list(NODE_TROUBLES))
    # Joint troubles are rare in the long list of kinds, and find most mistakes.
    any_kind = _deal(rng, [*NODE_TROUBLES, *JOINT_TROUBLES, *JOINT_TROUBLES])
    at = rng.uniform(0.0, GAP)
    while at < seconds:
        given = _round(rng, at, alone, any_kind)
        until = max(trouble.part.until for trouble in given)
        if until <= seconds:  # else the next kinds may be shorter
            yield from given
            at = until
        at += rng.uniform(0.02, GAP)


def _client_troubles(seconds: float, rng: random.Random) -> Iterator[Trouble]:
    kinds = _deal(rng, list(CLIENT_TROUBLES))
    at = rng.uniform(0.0, GAP)
    while at < seconds:
        kind = next(kinds)
        make = CLIENT_TROUBLES[kind]
        part = make(rng, at, rng.choice(PROXIED if make is isolate else range(CLIENTS)))
        if part.until <= seconds:
            yield Trouble(kind, part)
            at = part.until
        at += rng.uniform(0.02, GAP)


def plan(seed: object, seconds: float) -> list[Trouble]:
    """Return the troubles of a run, all of them over after that many seconds."""
    nodes = _node_troubles(seconds, random.Random(f"{seed} nodes"))
    clients = _client_troubles(seconds - PLACE_KEPT, random.Random(f"{seed} clients"))
    return [*nodes, *clients]


def faults_of(troubles: Sequence[Trouble]) -> list[Fault]:
    """Return all faults in the order of their time."""
    return sorted((fault for trouble in troubles for fault in trouble.part.faults), key=lambda fault: fault.at)
