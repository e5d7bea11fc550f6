"""Loss reported in time: when a hold ends without its release, its owner learns that once, by the instant of the end.

For each hold of a running machine:

* when `valid_until` comes, or a quorum becomes impossible before that, the client reports `HoldLost` (log, `on_lost`,
  the cancelled body, listeners): by `valid_until` on the machine's clock, or when the watchdog is back from the round
  of votes that it is waiting for at that instant, however much the client holds;
* on a machine that was paused, or whose clock jumped, at that instant: in the very instant in which it continues;
* never twice, and never for a released hold;
* a hold that has ended is never valid again: its loss is never revoked, and it is never extended too late.

The bound is the timeout of that round, and no time beyond: a simulated machine needs none to act.

Not seen: how a callback or a cancelled body reacts; a hold that is acquired and ends within one step; programs on
crashed machines, which can't learn anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from redsync._core.events import HoldLost
from redsync._core.holds import HoldState
from redsync.testing.simulator.checks.checker import Checker, Simulation, describe, whose
from redsync.testing.simulator.happenings import Faulted, Stepped, Told

if TYPE_CHECKING:
    from redsync.testing.simulator.machines import Machine
    from redsync.testing.simulator.runner import SimulatedRunner

__all__ = ["LossTold"]

_ROUNDING = 0.000_01


class LossTold(Checker):
    """Every loss is reported, once and in time."""

    name = "loss"
    watches = (Stepped, Told, Faulted)
    every = 0.05  # for idle machines

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim)
        self._told: Final[dict[HoldState, None]] = {}
        self._believed: Final[dict[HoldState, float]] = {}
        self._went_on: Final[dict[Machine, float]] = {}

    def see(self, happening: Stepped | Told | Faulted) -> str | None:
        """Look at reported and unreported losses."""
        if isinstance(happening, Told):
            return self._see_told(happening)
        if isinstance(happening, Faulted):
            if happening.kind in {"machine resume", "machine jump"}:
                for machine in self.sim.machines:
                    if happening.text.startswith(f"{machine.name} "):
                        self._went_on[machine] = happening.at
            return None
        return next(self._look_at(happening.machine), None)

    def look(self) -> Iterable[str]:
        """Look for unnoticed losses."""
        for machine in self.sim.machines:
            if not (machine.crashed or machine.paused):
                yield from self._look_at(machine)

    def _see_told(self, happening: Told) -> str | None:
        event = happening.event
        if not isinstance(event, HoldLost):
            return None
        state, hold = event.state, _hold(event.state)
        twice, self._told[state] = state in self._told, None
        if twice:
            return f"{hold}: its loss was reported twice"
        if not state.live:
            return f"{hold}: reported lost after its release"
        late = self.sim.now - self._deadline(happening.runner, state)
        return f"{hold}: its loss was reported {late:.6f} s too late" if late > 0 else None

    def _look_at(self, machine: Machine) -> Iterator[str]:
        clock, now = machine.clock, machine.clock.now()
        for runner in machine.runners:
            for state in runner.session.holds:
                believed = self._believed.get(state, state.valid_until)
                self._believed[state] = state.valid_until
                if state in self._told:
                    if state.lost is None or state.valid(now):
                        yield f"{_hold(state)}: valid again after its loss was reported"
                elif state.lost is not None:
                    yield f"{_hold(state)}: lost, and not reported"
                elif state.valid_until > believed and now >= believed:
                    yield f"{_hold(state)}: ended at {clock.instant(believed):.6f} and was extended after that"
                elif state.live and self.sim.now > self._deadline(runner, state):
                    yield f"{_hold(state)}: ended at {clock.instant(believed):.6f}, and not reported"

    def _deadline(self, runner: SimulatedRunner, state: HoldState) -> float:
        """Return the true instant by which the end of a hold must have been reported."""
        machine, timing = runner.machine, runner.session.timing
        ended = max(machine.clock.instant(state.valid_until), self._went_on.get(machine, 0.0))
        return ended + timing.round_timeout(max(timing.lease, state.lease)) + _ROUNDING


def _hold(state: HoldState) -> str:
    return describe(*whose(state))
