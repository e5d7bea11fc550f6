"""Exclusion: at no instant do two owners of live machines believe to hold the same key.

Who believes is asked by its own clock, and compared in true time: beliefs change only when a protocol makes a step, or
a clock jumps, and both are looked at when they have happened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from redsync._core.holds import HoldState
from redsync.testing.simulator.checks.checker import Checker
from redsync.testing.simulator.happenings import Stepped

if TYPE_CHECKING:
    from redsync.testing.simulator.machines import Machine
    from redsync.testing.simulator.simulation import Simulation

__all__ = ["Exclusion"]


class Exclusion(Checker):
    """At most one owner at a time. A crashed machine's owners believe nothing any more."""

    name = "exclusion"
    watches = (Stepped,)

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim)
        self._believers: dict[bytes, tuple[Machine, HoldState]] = {}

    def see(self, happening: Stepped) -> str | None:
        """Look at all that the owners on the machine believe to hold."""
        machine = happening.machine
        for runner in machine.runners:
            if len(runner.session.holds):
                for state in runner.session.holds:
                    known = self._believers.get(state.keys.lock)
                    if known is not None and known[1] is state:
                        continue
                    if state.valid(machine.clock.now()):
                        if known is not None and self._believes(*known):
                            return self._describe(known, (machine, state))
                        self._believers[state.keys.lock] = machine, state
        return None

    def _believes(self, machine: Machine, state: HoldState) -> bool:
        return not machine.crashed and state.valid(machine.clock.now())

    def _describe(self, *believers: tuple[Machine, HoldState]) -> str:
        (_, first), _ = believers
        who = " and ".join(
            f"{state.owner} on {machine.name} (until {machine.clock.instant(state.valid_until):.6f})"
            for machine, state in believers
        )
        return f"at {self.sim.now:.6f} {first.keys.lock.decode(errors='replace')!r} is held by {who}"
