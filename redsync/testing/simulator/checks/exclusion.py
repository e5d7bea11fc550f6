"""Exclusion: at no instant do two owners believe that they hold the same key, or the same slot of a semaphore.

Only live machines count. Several owners may read at once.

Each owner's belief is judged by its machine's own clock, and beliefs are compared in true time. They change only when a
protocol makes a step or a clock jumps, and the checker looks after each of these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from redsync._core.holds import HoldState
from redsync._core.permits import PermitState
from redsync.testing.simulator.checks.checker import Checker, Simulation
from redsync.testing.simulator.happenings import Stepped

if TYPE_CHECKING:
    from redsync.testing.simulator.machines import Machine

__all__ = ["Exclusion"]

_Thing: TypeAlias = tuple[bytes, int | None]


class Exclusion(Checker):
    """At most one owner at a time, or only readers. A crashed machine's owners no longer believe anything."""

    name = "exclusion"
    watches = (Stepped,)
    rests_on_clocks = True

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim)
        self._believers: dict[_Thing, dict[HoldState, Machine]] = {}

    def see(self, happening: Stepped) -> str | None:
        """Look at all holds that the owners on the machine believe in."""
        machine = happening.machine
        things = ((state, slot) for state in machine.holds() for slot in _slots(state) or (None,))
        looks = (self._look_at((state.keys.lock, slot), machine, state) for state, slot in things)
        return next(filter(None, looks), None)

    def _look_at(self, thing: _Thing, machine: Machine, state: HoldState) -> str | None:
        known = self._believers.setdefault(thing, {})
        if state in known or not state.valid(machine.clock.now()):
            return None
        for other, where in list(known.items()):
            if not self._believes(thing[1], where, other):
                del known[other]
            elif _exclude(state, other):
                return self._describe(thing, (where, other), (machine, state))
        known[state] = machine
        return None

    @staticmethod
    def _believes(slot: int | None, machine: Machine, state: HoldState) -> bool:
        has = slot is None or slot in _slots(state)
        return has and not machine.crashed and state.valid(machine.clock.now())

    def _describe(self, thing: _Thing, *believers: tuple[Machine, HoldState]) -> str:
        who = " and ".join(
            f"{state.owner} on {machine.name} (until {machine.clock.instant(state.valid_until):.6f})"
            for machine, state in believers
        )
        key, slot = thing
        what = f"slot {slot} of " if slot is not None else ""
        return f"at {self.sim.now:.6f} {what}{key.decode(errors='replace')!r} is held by {who}"


def _slots(state: HoldState) -> tuple[int, ...]:
    """Return the slots that a permit has."""
    return state.slots[: state.count] if isinstance(state, PermitState) else ()


def _exclude(one: HoldState, other: HoldState) -> bool:
    """Return whether two holds must not be believed at once: a writer may read too, and several owners may read."""
    modes = one.kind.mode, other.kind.mode
    return not (all(modes) and (modes == (b"r:", b"r:") or one.owner is other.owner))
