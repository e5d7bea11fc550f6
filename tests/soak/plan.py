"""The schedule of a run: each trouble and its time, as a pure function of the seed.

Troubles come in *slots*. A slot gives trouble to one target until that is healthy again, and then to another; so at
most as many targets are in trouble at a time as there are slots. Two slots for five nodes keep redsync's condition: a
majority is always healthy. Kinds are dealt like cards, so that each comes up once before any comes up again: a minute
sees all of them, whatever the seed.

All instants are seconds from the start of the run; the nemesis never lets two faults come closer than planned here.
"""

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tests.chaos.nemesis import Fault
from tests.soak.troubles import (
    CLIENT_TROUBLES,
    CLIENTS,
    FLUSHES,
    JOINT_FLUSHES,
    JOINT_TROUBLES,
    MINORITY,
    NODE_TROUBLES,
    NODES,
    PROXIED,
    Make,
    MakeJoint,
    Part,
    isolate,
)

CLIENTS_IN_TROUBLE = 2
NODE_GAP, CLIENT_GAP = 0.6, 4.0  # seconds at most between two troubles of one slot
PLACE_KEPT = 6.0
"""Seconds before the end from which no client is killed: nodes keep the place of a dead waiter for 5 s."""


class Trouble(NamedTuple):
    """One dealt card.

    Attributes:
        kind: Its name in the report.
        parts: Its effects on each of its targets.
    """

    kind: str
    parts: Sequence[Part]


class _Slots:
    """Gives trouble to at most as many targets at a time as there are slots."""

    def __init__(self, slots: int, targets: int, gap: float, rng: random.Random):
        self._rng, self._gap = rng, gap
        self._free_at = [rng.uniform(0.0, gap) for _ in range(slots)]
        self._whole_at = [0.0] * targets

    @property
    def next_at(self) -> float:
        return min(self._free_at)

    def _whole(self, at: float, among: Sequence[int]) -> list[int]:
        whole = [target for target in among if self._whole_at[target] <= at]
        return self._rng.sample(whole, len(whole))

    def give(self, make: Make, before: float, among: Sequence[int]) -> list[Part]:
        """Return trouble for one target; none if no target is available, or it would not be over before the end."""
        at = self.next_at
        slot = self._free_at.index(at)
        parts = [make(self._rng, at, target) for target in self._whole(at, among)[:1]]
        if not parts or parts[0].until > before:
            self._free_at[slot] = at + 0.25  # the next kind may be shorter, or a target healthy by then
            return []
        return self._given(parts, [slot])

    def give_all(self, make: MakeJoint, before: float, among: Sequence[int]) -> list[Part]:
        """Return trouble that takes all slots; none if it would not be over before the end."""
        at = max(self._free_at)
        parts = make(self._rng, at, self._whole(at, among))
        return [] if max(part.until for part in parts) > before else self._given(parts, range(len(self._free_at)))

    def _given(self, parts: list[Part], slots: Sequence[int]) -> list[Part]:
        for part in parts:
            self._whole_at[part.target] = part.until
        until = max(part.until for part in parts)
        for slot in slots:
            self._free_at[slot] = until + self._rng.uniform(0.02, self._gap)
        return parts


def _deal(rng: random.Random, kinds: Sequence[str], more: Sequence[str] = ()) -> Iterator[str]:
    """Yield each kind once, and then again and again, with some `more` from the second round on."""
    yield from rng.sample(kinds, len(kinds))
    while True:
        yield from rng.sample([*kinds, *more], len(kinds) + len(more))


def _node_troubles(seconds: float, rng: random.Random) -> Iterator[Trouble]:
    alone = NODE_TROUBLES | FLUSHES
    joint = JOINT_TROUBLES | JOINT_FLUSHES
    slots = _Slots(MINORITY, NODES, NODE_GAP, rng)
    # Joint troubles are rare in the long list of kinds, and find most mistakes.
    for kind in _deal(rng, [*alone, *joint], [*joint, *joint]):
        if slots.next_at >= seconds:
            return
        nodes = range(NODES)
        given = (
            slots.give_all(joint[kind], seconds, nodes) if kind in joint else slots.give(alone[kind], seconds, nodes)
        )
        if given:
            yield Trouble(kind, given)


def _client_troubles(seconds: float, rng: random.Random) -> Iterator[Trouble]:
    slots = _Slots(CLIENTS_IN_TROUBLE, CLIENTS, CLIENT_GAP, rng)
    for kind in _deal(rng, list(CLIENT_TROUBLES)):
        if slots.next_at >= seconds:
            return
        make = CLIENT_TROUBLES[kind]
        if given := slots.give(make, seconds, PROXIED if make is isolate else range(CLIENTS)):
            yield Trouble(kind, given)


def _flushed_scripts(seconds: float, troubles: Sequence[Trouble], rng: random.Random) -> Iterator[Trouble]:
    """Yield SCRIPT FLUSHes, of one node or of all that can be asked then; a node loses nothing else by it."""
    absences = [absence for trouble in troubles for part in trouble.parts for absence in absences_of(part)]
    at = rng.uniform(0.5, 2.0)
    while at < seconds:
        out = {node for node, begins, ends in absences if begins - 0.1 <= at <= ends + 0.1}
        there = [node for node in range(NODES) if node not in out]
        chosen = there if rng.random() < 0.3 else [rng.choice(there)]
        yield Trouble("SCRIPT FLUSH", [Part(node, (Fault(at, "flush_scripts", (node,)),), at) for node in chosen])
        at += rng.uniform(0.5, 3.5)


def absences_of(part: Part) -> Iterator[tuple[int, float, float]]:
    """Yield when a node does not answer any client: node, beginning, end."""
    left_at = None
    for fault in part.faults:
        if fault.action in ("kill", "pause"):
            left_at = fault.at if left_at is None else left_at
        elif fault.action in ("restart", "resume"):
            yield part.target, left_at, fault.at
            left_at = None


def plan(seed: object, seconds: float) -> list[Trouble]:
    """Return the troubles of a run, all of them over after that many seconds."""
    nodes = list(_node_troubles(seconds, random.Random(f"{seed} nodes")))
    clients = _client_troubles(seconds - PLACE_KEPT, random.Random(f"{seed} clients"))
    return [*nodes, *clients, *_flushed_scripts(seconds, nodes, random.Random(f"{seed} scripts"))]


def faults_of(troubles: Sequence[Trouble]) -> list[Fault]:
    """Return all faults in the order of their time."""
    faults = [fault for trouble in troubles for part in trouble.parts for fault in part.faults]
    return sorted(faults, key=lambda fault: fault.at)
