"""Exclusion: at no instant do two owners of live machines believe to hold the same key, or a semaphore's same slot.

Who believes is asked by its own clock, and compared in true time: beliefs change only when a protocol makes a step, or
a clock jumps, and both are looked at when they have happened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from redsync._core.holds import HoldState
from redsync.testing.simulator.checks.checker import Checker
from redsync.testing.simulator.happenings import Stepped

if TYPE_CHECKING:
    from redsync.testing.simulator.machines import Machine
    from redsync.testing.simulator.simulation import Simulation

__all__ = ["Exclusion"]

_Thing: TypeAlias = tuple[bytes, int | None]


class Exclusion(Checker):
    """At most one owner at a time. A crashed machine's owners believe nothing any more."""

    name = "exclusion"
    watches = (Stepped,)
    rests_on_clocks = True

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim)
        self._believers: dict[_Thing, tuple[Machine, HoldState]] = {}

    def see(self, happening: Stepped) -> str | None:
        """Look at all that the owners on the machine believe to hold."""
        machine = happening.machine
        for runner in machine.runners:
            if len(runner.session.holds):
                for state in runner.session.holds:
                    for slot in state.slots[: state.count] or (None,):
                        complaint = self._look_at((state.keys.lock, slot), machine, state)
                        if complaint is not None:
                            return complaint
        return None

    def _look_at(self, thing: _Thing, machine: Machine, state: HoldState) -> str | None:
        known = self._believers.get(thing)
        if known is not None and known[1] is state:
            return None
        if state.valid(machine.clock.now()):
            if known is not None and self._believes(thing[1], *known):
                return self._describe(thing, known, (machine, state))
            self._believers[thing] = machine, state
        return None

    @staticmethod
    def _believes(slot: int | None, machine: Machine, state: HoldState) -> bool:
        has = slot is None or slot in state.slots[: state.count]
        return has and not machine.crashed and state.valid(machine.clock.now())

    def _describe(self, thing: _Thing, *believers: tuple[Machine, HoldState]) -> str:
        who = " and ".join(
            f"{state.owner} on {machine.name} (until {machine.clock.instant(state.valid_until):.6f})"
            for machine, state in believers
        )
        key, slot = thing
        what = f"slot {slot} of " if slot is not None else ""
        return f"at {self.sim.now:.6f} {what}{key.decode(errors='replace')!r} is held by {who}"
