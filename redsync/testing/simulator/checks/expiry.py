"""Expiry: each claim ends automatically; no node keeps one for longer than its own owner asked for, whatever others do.

Whenever a node has executed a script about a lock, each claim that it keeps there ends no later than the latest of

* the instants at which it executed an acquire request or a renewal of that owner, plus the requested lease,
* the instants at which it executed that owner's request for a place in the queue, plus the time to keep the place: the
  lock may have been handed over for that long;
* the instants at which it executed any script about the lock while it kept that place, plus the lease in the request's
  mark, if it has one: it may have handed the lock over for that long.

So the claim of a dead owner is gone one lease after its last command, even where others continue to renew theirs. It
holds at every instant, by the node's own clock, whichever way that jumps. A semaphore's permits are claims like any
other.

Not seen: claims of owners unknown to this run.
"""

from __future__ import annotations

from typing import Final

from redsync.testing.simulator.checks.checker import Checker, Simulation, describe
from redsync.testing.simulator.checks.kept import kept_claims, now_ms
from redsync.testing.simulator.checks.rounds import PERMIT, claims, parse
from redsync.testing.simulator.happenings import Executed

__all__ = ["Expiry"]

_WITH_PLACE = 8
"""The smallest number of arguments of an acquire request that takes a place."""

_MARK = 7
"""The index of the mark: "<number>", or "<number>+<lease, ms>"."""

_ROUNDING = 1
"""Milliseconds: a key still exists in its last one, and a claim may begin within one."""


class Expiry(Checker):
    """No claim outlives the requested lease."""

    name = "expiry"
    watches = (Executed,)

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim)
        self._allowed: Final[dict[tuple[int, bytes, bytes, bytes], float]] = {}
        # The end of each place, and for how long its owner may be handed the lock, in ms.
        self._places: Final[dict[tuple[int, bytes, bytes, bytes], tuple[int, int]]] = {}

    def see(self, happening: Executed) -> str | None:
        """Look at the claims on the keys of a script."""
        node, (noun, verb) = happening.node, parse(happening.script)
        if not noun:
            return None
        now = now_ms(self.sim.nodes[node])
        keys: dict[bytes, None] = {}
        for claim in claims(happening.script, happening.keys, happening.args):
            keys[claim.key] = None
            until_ms = now + claim.lease * 1000
            whose = node, *claim.whose
            if verb == "acquire" and noun != PERMIT and len(happening.args) >= _WITH_PLACE:
                place_until, mark = now + int(happening.args[4]), happening.args[_MARK]
                assert isinstance(mark, bytes), "a mark is text"
                until_ms = max(until_ms, place_until)
                self._places[whose] = place_until, int(mark.partition(b"+")[2] or 0)
            self._allowed[whose] = max(self._allowed.get(whose, 0), until_ms)
        for key in keys:
            if text := self._look_at(node, key, now):
                return text
        return None

    def _look_at(self, node: int, key: bytes, now: int) -> str | None:
        for kept in kept_claims(self.sim.nodes[node], key):
            whose = node, key, kept.id, kept.mode
            allowed = self._allowed.get(whose)
            if allowed is None:
                continue
            place_until, lease_ms = self._places.get(whose, (0, 0))
            if now <= place_until and allowed < now + lease_ms:
                self._allowed[whose] = allowed = now + lease_ms
            if kept.until_ms > allowed + _ROUNDING:
                what = f"{self.sim.nodes[node].name} keeps {describe(key, kept.id, kept.mode)}"
                return f"{what} for {kept.until_ms - allowed:g} ms longer than requested"
        return None
