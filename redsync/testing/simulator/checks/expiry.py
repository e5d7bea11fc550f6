"""Expiry: each claim ends by itself. No node keeps one for longer than its own owner asked for, whatever others do.

Whenever a node has executed something about a lock, each claim that it keeps there ends no later than the latest of

* the instants at which it executed an acquire request or a renewal of that owner, plus the lease that was asked for,
* the instants at which it executed that owner's request for a place in the queue, plus the time for which to keep the
  place: the lock may have been handed over for that long.

So the claim of a dead owner is gone one lease after its last command, even where others go on renewing theirs. It holds
at every instant, by the node's own clock, whichever way that jumps. A semaphore's permits are claims like any other.

Not seen: claims of owners unknown to this run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from redsync.testing.simulator.checks.checker import Checker, describe
from redsync.testing.simulator.checks.kept import kept_claims, now_ms
from redsync.testing.simulator.checks.rounds import PERMIT, claims, parse
from redsync.testing.simulator.happenings import Executed

if TYPE_CHECKING:
    from redsync.testing.simulator.simulation import Simulation

__all__ = ["Expiry"]

_WITH_PLACE = 8
"""The least number of arguments of an acquire request that takes a place."""

_ROUNDING = 1
"""Milliseconds: a key still exists in its last one."""


class Expiry(Checker):
    """No claim outlives the lease that was asked for it."""

    name = "expiry"
    watches = (Executed,)

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim)
        self._allowed: Final[dict[tuple[int, bytes, bytes, bytes], int]] = {}

    def see(self, happening: Executed) -> str | None:
        """Look at the claims on the keys of a script."""
        node, (noun, verb) = happening.node, parse(happening.script)
        if not noun:
            return None
        now = now_ms(self.sim.nodes[node])
        keys: dict[bytes, None] = {}
        for claim in claims(happening.script, happening.keys, happening.args):
            keys[claim.key] = None
            until_ms = now + round(claim.lease * 1000)
            if verb == "acquire" and noun != PERMIT and len(happening.args) >= _WITH_PLACE:
                until_ms = max(until_ms, now + int(happening.args[4]))
            whose = node, *claim.whose
            self._allowed[whose] = max(self._allowed.get(whose, 0), until_ms)
        for key in keys:
            if text := self._look_at(node, key):
                return text
        return None

    def _look_at(self, node: int, key: bytes) -> str | None:
        for kept in kept_claims(self.sim.nodes[node], key):
            allowed = self._allowed.get((node, key, kept.id, kept.mode))
            if allowed is not None and kept.until_ms > allowed + _ROUNDING:
                what = f"{self.sim.nodes[node].name} keeps {describe(key, kept.id, kept.mode)}"
                return f"{what} for {kept.until_ms - allowed:g} ms longer than it has asked for"
        return None
