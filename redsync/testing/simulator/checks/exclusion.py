"""Exclusion: at no instant do two owners of live machines believe to hold the same key, unless both only read.

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
    """At most one owner at a time, or only readers. A crashed machine's owners believe nothing any more."""

    name = "exclusion"
    watches = (Stepped,)

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim)
        self._believers: dict[bytes, dict[HoldState, Machine]] = {}

    def see(self, happening: Stepped) -> str | None:
        """Look at all that the owners on the machine believe to hold."""
        machine = happening.machine
        for runner in machine.runners:
            if len(runner.session.holds):
                for state in runner.session.holds:
                    known = self._believers.setdefault(state.keys.lock, {})
                    if state in known or not state.valid(machine.clock.now()):
                        continue
                    for other, where in list(known.items()):
                        if not self._believes(where, other):
                            del known[other]
                        elif _exclude(state, other):
                            return self._describe((where, other), (machine, state))
                    known[state] = machine
        return None

    @staticmethod
    def _believes(machine: Machine, state: HoldState) -> bool:
        return not machine.crashed and state.valid(machine.clock.now())

    def _describe(self, *believers: tuple[Machine, HoldState]) -> str:
        (_, first), _ = believers
        who = " and ".join(
            f"{state.owner} on {machine.name} (until {machine.clock.instant(state.valid_until):.6f})"
            for machine, state in believers
        )
        return f"at {self.sim.now:.6f} {first.keys.lock.decode(errors='replace')!r} is held by {who}"


def _exclude(one: HoldState, other: HoldState) -> bool:
    """Whether two must not be believed at once: who writes may read too, and any number may read."""
    modes = one.kind.mode, other.kind.mode
    return not (all(modes) and (modes == (b"r:", b"r:") or one.owner is other.owner))
