"""Tokens: the fencing token of each hold is higher than those of all holds of that key before it.

A hold counts from the step in which its protocol takes it up: its owner knows nothing of it before, and steps come one
after the other, whatever clocks say. It keeps its token, however often it is re-entered and renewed.

A node that forgot its token begins with its clock. If that is behind what was handed out already, nothing is promised
for that key any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from redsync._core.holds import HoldState
from redsync.testing.simulator.checks.checker import Checker, describe
from redsync.testing.simulator.happenings import Executed, Stepped

if TYPE_CHECKING:
    from redsync.testing.simulator.simulation import Simulation

__all__ = ["Tokens"]


class Tokens(Checker):
    """Fencing tokens strictly increase in acquisition order, and a hold keeps its own."""

    name = "tokens"
    watches = (Executed, Stepped)

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim)
        self._latest: dict[bytes, tuple[int, HoldState]] = {}
        self._seen: dict[HoldState, int | None] = {}
        self._behind: set[bytes] = set()

    def see(self, happening: Executed | Stepped) -> str | None:
        """Look at a node that begins anew, and at the holds that a machine has taken up."""
        if isinstance(happening, Executed):
            if happening.script == "fenced_lock_acquire":
                self._note_beginning(happening)
            return None
        for runner in happening.machine.runners:
            if len(runner.session.holds):
                for state in runner.session.holds:
                    complaint = self._look_again(state) if state in self._seen else self._look_at(state)
                    if complaint is not None:
                        return complaint
        return None

    def _note_beginning(self, executed: Executed) -> None:
        latest = self._latest.get(executed.keys[0])
        reply = executed.reply
        if latest is not None and isinstance(reply, list) and reply[1].__class__ is int:
            begun = reply[1] == self.sim.nodes[executed.node].store.now_us
            if begun and reply[1] <= latest[0]:
                self._behind.add(executed.keys[0])

    def _look_at(self, state: HoldState) -> str | None:
        key, token = state.keys.lock, state.fencing_token
        self._seen[state] = token
        if token is None:
            return None
        highest, by = self._latest.get(key, (0, state))
        if token <= highest and key not in self._behind:
            who, before = (describe(key, each.owner.wire) for each in (state, by))
            return f"{who} has token {token}, and {before} had {highest} earlier"
        self._latest[key] = max(token, highest), state
        return None

    def _look_again(self, state: HoldState) -> str | None:
        before, self._seen[state] = self._seen[state], state.fencing_token
        if before == state.fencing_token:
            return None
        return f"{describe(state.keys.lock, state.owner.wire)} had token {before}, and now has {state.fencing_token}"
