"""Tokens: the fencing token of each hold is higher than those of all earlier holds of that key.

A hold counts from the step in which its protocol records it: its owner does not know of it before that, and steps come
one after the other, whatever clocks say. It keeps its token, however often it is re-entered and renewed.

A node that forgot its token begins with its clock, or above the highest token that the asking client knows. If its
clock is behind an issued token, nothing is promised for that key any more.
"""

from __future__ import annotations

from redsync._core.holds import HoldState
from redsync.testing.simulator.checks.checker import Checker, Simulation, describe
from redsync.testing.simulator.happenings import Executed, Faulted, Stepped

__all__ = ["Tokens"]


class Tokens(Checker):
    """Fencing tokens strictly increase in acquisition order, and a hold keeps its own."""

    name = "tokens"
    watches = (Executed, Faulted, Stepped)

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim)
        self._latest: dict[bytes, tuple[int, HoldState]] = {}
        self._seen: dict[HoldState, int | None] = {}
        self._behind: set[bytes] = set()
        self._forgotten: set[tuple[int, bytes]] = set()
        self._kept: set[tuple[int, bytes]] = set()

    def see(self, happening: Executed | Faulted | Stepped) -> str | None:
        """Look at a node that starts over, and at new holds on a machine."""
        if isinstance(happening, Faulted):
            self._note_losses()
            return None
        if isinstance(happening, Executed):
            if happening.script == "fenced_lock_acquire":
                self._note_beginning(happening)
            return None
        holds = happening.machine.holds()
        looks = (self._look_again(state) if state in self._seen else self._look_at(state) for state in holds)
        return next(filter(None, looks), None)

    def _note_losses(self) -> None:
        lost = {kept for kept in self._kept if self.sim.nodes[kept[0]].store.peek(kept[1]) is None}
        self._kept -= lost
        self._forgotten |= lost

    def _note_beginning(self, executed: Executed) -> None:
        if isinstance(executed.reply, int) and abs(executed.reply) > 2:
            place, lock = (executed.node, executed.keys[-1]), executed.keys[0]
            latest = self._latest.get(lock)
            if place in self._forgotten and latest and self.sim.nodes[executed.node].store.now_us <= latest[0]:
                self._behind.add(lock)
            self._forgotten.discard(place)
            self._kept.add(place)

    def _look_at(self, state: HoldState) -> str | None:
        key, token = state.keys.lock, state.fencing_token
        self._seen[state] = token
        if token is None:
            return None
        highest, by = self._latest.get(key, (0, state))
        if token <= highest and key not in self._behind:
            who, before = (describe(key, each.claim) for each in (state, by))
            return f"{who} has token {token}, and {before} had {highest} earlier"
        self._latest[key] = max(token, highest), state
        return None

    def _look_again(self, state: HoldState) -> str | None:
        before, self._seen[state] = self._seen[state], state.fencing_token
        if before == state.fencing_token:
            return None
        return f"{describe(state.keys.lock, state.claim)} had token {before}, and now has {state.fencing_token}"
