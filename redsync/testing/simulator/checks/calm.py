"""The time since the last fault: for checkers of what must happen once faults are over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from redsync.testing.simulator.simulation import Simulation
    from redsync.testing.simulator.timeline import Clock

__all__ = ["Calm"]


class Calm:
    """Tells when the last fault ended, if all have. The simulation calls `stir` at every `Faulted`."""

    def __init__(self, sim: Simulation) -> None:
        self._sim: Final = sim
        self._latest: Final[dict[Clock, float]] = {}
        self._stirred = 0.0
        self._looked: tuple[float, float] | None = None

    def stir(self) -> None:
        """Record that a fault begins or ends; called before a clock jumps."""
        clocks = [node.clock for node in self._sim.servers] + [machine.clock for machine in self._sim.machines]
        for clock in clocks:
            self._latest[clock] = max(self._latest.get(clock, 0.0), clock.now())
        self._stirred = max([self._sim.now, *self._caught_up()])
        self._looked = None

    def lag(self, clock: Clock) -> float:
        """Return how many seconds a clock is behind the latest time it has shown; ends by that clock are that late."""
        return max(self._latest.get(clock, 0.0) - clock.now(), 0.0)

    def lasted(self) -> float:
        """Return how many seconds have passed without faults; 0.0 while there are any.

        There are no faults while every server is up and obeys, the effects of each group's latest failover are
        complete, the network is healthy, no machine is paused, and each clock shows later times than ever before;
        crashed machines do not count.
        """
        sim = self._sim
        if self._looked is not None and self._looked[0] == sim.now:
            return self._looked[1]  # several checkers ask at the same instant
        machines = [machine for machine in sim.machines if not machine.crashed]
        if (
            sim.network.troubled
            or any(not node.is_well or node.ignores or self.lag(node.clock) for node in sim.servers)
            or not all(group.is_settled for group in sim.groups)
            or any(machine.paused or self.lag(machine.clock) for machine in machines)
        ):
            self._stirred = max(self._stirred, sim.now)
        self._stirred = max([self._stirred, *self._caught_up()])
        lasted = max(sim.now - self._stirred, 0.0)
        self._looked = sim.now, lasted
        return lasted

    def _caught_up(self) -> list[float]:
        """Return when each clock is back at its latest shown time, even if no checker looked while it was behind."""
        return [clock.instant(latest) for clock, latest in self._latest.items()]
