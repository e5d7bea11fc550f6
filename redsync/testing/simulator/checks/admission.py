"""Admission: each node admits readers alongside readers and a writer alone, and no reader before a waiting writer.

After every script about a read-write lock:

* a node that keeps a writer's claim keeps no other owner's claim;
* an owner with a new claim to read arrived before all writers that have a place in the queue there, or writes as well.
  Its arrival is the node's time at the request, less the time already waited. An owner that takes no place ranks last;
  one that had a writer's place there keeps that writer's rank. So readers can't starve a writer, however many there
  are;
* a writer that got the lock by a hand-over arrived before all owners that have a place there and keep it. A writer that
  asks and finds the lock free may be quicker than the waiters, as with every lock that is not fair.

It holds for each node separately, at every instant, until its clock jumps: a node whose clock is set back to before the
end of an expired claim has that claim again, if no command has removed it. Two claims that exclude each other at one
node break no promise to users yet: `exclusion` reports holds that do. But that promise rests on this one, because two
quorums share a node.

Not seen: places that a node has lost, since the check reads the node's own records; claims that are new only to this
node, because their owners renew them or re-enter.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final, NamedTuple, TypeAlias

from redsync.testing.simulator.checks.checker import Checker, Simulation
from redsync.testing.simulator.checks.kept import kept_at, kept_claims, kept_places, now_ms
from redsync.testing.simulator.checks.rounds import MODES, owner_in, parse
from redsync.testing.simulator.happenings import Executed, Faulted
from redsync.testing.simulator.values import SortedSet

__all__ = ["Admission"]

_READ, _WRITE = MODES["read_lock"], MODES["write_lock"]
_FORCE = "read_write_lock_force_release"
_WITH_PLACE = 8
_SHIFT = 1 << 52
"""Subtracted from the arrivals of writers, so that they come before readers in the queue."""


_Rank: TypeAlias = tuple[float, int, bytes]

_FIRST: Final[_Rank] = (-math.inf, 0, b"")
_LAST: Final[_Rank] = (math.inf, 0, b"")


class _Place(NamedTuple):
    owner: bytes
    mode: bytes
    came: float

    @property
    def rank(self) -> _Rank:
        """The order of waiters: of two that arrived at the same instant, the writer comes first."""
        return self.came, int(self.mode == _READ), self.owner


class _Book(NamedTuple):
    """A node's record of one lock: the ends of claims, and the waiters."""

    claims: dict[tuple[bytes, bytes], float]
    places: frozenset[_Place]


class Admission(Checker):
    """Nodes admit only readers and writers that they may admit."""

    name = "admission"
    watches = (Executed, Faulted)

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim)
        self._books: Final[dict[tuple[int, bytes], _Book]] = {}
        self._queues: Final[dict[bytes, tuple[bytes, bytes]]] = {}
        self._jumped: Final[dict[str, None]] = {}

    def see(self, happening: Executed | Faulted) -> str | None:
        """Look at the records after a script."""
        if isinstance(happening, Faulted):
            if happening.kind == "node jump":
                self._jumped[happening.who] = None
            elif happening.loses_memory:
                for node, key in list(self._books):
                    if self.sim.nodes[node].name == happening.who:
                        del self._books[node, key]
            return None
        noun, verb = parse(happening.script)
        if noun not in MODES and happening.script != _FORCE:
            return None
        if verb != "renew" and len(happening.keys) > 1:
            self._queues[happening.keys[0]] = happening.keys[1], happening.keys[2]
        found = [
            text for key in happening.keys[: None if verb == "renew" else 1] for text in self._turn(happening, key)
        ]
        return found[0] if found and self.sim.nodes[happening.node].name not in self._jumped else None

    def _turn(self, executed: Executed, key: bytes) -> Iterator[str]:
        """Read the node's record of a lock, and compare it with the last reading."""
        node = executed.node
        before, after = self._books.get((node, key), _Book({}, frozenset())), self._read(node, key)
        self._books[node, key] = after
        writers = [owner for owner, mode in after.claims if mode == _WRITE]
        for other, mode in after.claims:
            if writers and other != writers[0]:
                yield self._describe(node, key, "keeps", (writers[0], _WRITE), "and also", (other, mode))
        if parse(executed.script)[1] == "renew" or len(executed.keys) == 1:
            return
        now, waited = now_ms(self.sim.nodes[node]), sorted(before.places & after.places)
        for owner, mode in after.claims:
            if before.claims.get((owner, mode), 0.0) <= now and (mode == _WRITE or owner not in writers):
                rank = self._rank(executed, before, owner, mode)
                for place in waited:
                    if place.owner != owner and place.rank < rank and (mode, place.mode) != (_READ, _READ):
                        yield self._describe(node, key, "admitted", (owner, mode), "before", place[:2])

    def _read(self, node: int, key: bytes) -> _Book:
        claims: dict[tuple[bytes, bytes], float] = {}
        for claim in kept_claims(self.sim.nodes[node], key):
            # An owner has a second claim if an ask of an earlier acquire arrives late; either may end first.
            of = claim.owner, claim.mode
            claims[of] = max(claims.get(of, 0.0), claim.until_ms)
        if key not in self._queues:
            return _Book(claims, frozenset())
        scores = kept_at(self.sim.nodes[node], self._queues[key][0], SortedSet)
        kept = kept_places(self.sim.nodes[node], *self._queues[key])
        waiting = {owner: scores[owner] for owner in kept if owner in scores}
        places = (
            _Place(owner, _READ, score) if score >= 0 else _Place(owner, _WRITE, score + _SHIFT)
            for owner, score in waiting.items()
        )
        return _Book(claims, frozenset(places))

    def _rank(self, executed: Executed, before: _Book, owner: bytes, mode: bytes) -> _Rank:
        """Return the rank with which an owner was admitted."""
        place = next((place for place in before.places if place.owner == owner), None)
        if parse(executed.script)[1] != "acquire" or owner_in(bytes(executed.args[0])) != owner:
            return _LAST if place is None else place.rank
        if mode == _WRITE:
            return _FIRST
        asked = _LAST
        if len(executed.args) >= _WITH_PLACE:
            came = now_ms(self.sim.nodes[executed.node]) - int(executed.args[5])
            asked = _Place(owner, _READ, came).rank
        # An owner that writes on other nodes has had its turn, and may still have its place here.
        return min(asked, place.rank) if place is not None and place.mode == _WRITE else asked

    def _describe(self, node: int, key: bytes, *words: str | tuple[bytes, bytes]) -> str:
        told = (
            word if isinstance(word, str) else f"{word[0].decode()} {'writing' if word[1] == _WRITE else 'reading'}"
            for word in words
        )
        return f"{self.sim.nodes[node].name} {' '.join(told)}: {key.decode(errors='replace')!r}"
