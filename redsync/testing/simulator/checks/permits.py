"""The permit bound: at no instant do live machines believe in more permits of a semaphore than there are.

The number of permits is the newest limit, by version, under which any of the believed permits was granted: a shrink
takes nothing from holders, but grants nothing more until the new limit is kept. That holds at every instant, whatever
the faults, even where nodes forget limits; see `docs/semaphores.md`.

`exclusion` checks that no two owners believe in the same slot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from redsync._core.holds import HoldState
from redsync._core.permits import PermitState
from redsync.testing.simulator.checks.checker import Checker, Simulation
from redsync.testing.simulator.checks.rounds import PERMIT, parse
from redsync.testing.simulator.happenings import Sent, Stepped

if TYPE_CHECKING:
    from redsync.testing.simulator.machines import Machine

__all__ = ["PermitBound"]

_Limit: TypeAlias = tuple[int, int]
"""The version and the number of permits under which a permit was requested."""


class PermitBound(Checker):
    """Never more permits than the limit."""

    name = "permit bound"
    watches = (Stepped, Sent)
    rests_on_clocks = True

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim)
        self._asked: Final[dict[bytes, _Limit]] = {}
        self._held: Final[dict[HoldState, tuple[Machine, _Limit]]] = {}

    def see(self, happening: Stepped | Sent) -> str | None:
        """Record requests with their limits, and count the believed permits."""
        if isinstance(happening, Stepped):
            self._take_up(happening.machine)
            return self._count()
        if parse(happening.script) == (PERMIT, "acquire"):
            claim, version, permits = happening.args[0], happening.args[7], happening.args[8]
            assert isinstance(claim, bytes), "a claim is text"
            self._asked[claim] = int(version), int(permits)
        return None

    def _take_up(self, machine: Machine) -> None:
        for state in machine.holds():
            if isinstance(state, PermitState) and state not in self._held:
                # The votes that count are those of the latest acquire request.
                self._held[state] = machine, self._asked[state.claim]

    def _count(self) -> str | None:
        believed: dict[bytes, list[tuple[_Limit, Machine, HoldState]]] = {}
        for state, (machine, asked) in list(self._held.items()):
            if state.lost is not None or not state.live or machine.crashed:
                del self._held[state]
            elif state.valid(machine.clock.now()):
                believed.setdefault(state.keys.lock, []).append((asked, machine, state))
        for key, permits in believed.items():
            count = sum(state.count for _, _, state in permits)
            _, limit = max(asked for asked, _, _ in permits)
            if count > limit:
                who = ", ".join(f"{state.count} by {state.owner} on {machine.name}" for _, machine, state in permits)
                what = f"{count} permits of {key.decode(errors='replace')!r} are held where there are {limit}"
                return f"at {self.sim.now:.6f} {what}: {who}"
        return None
