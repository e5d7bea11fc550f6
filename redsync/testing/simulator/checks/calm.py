"""Since when all is well: for checkers of what must happen once faults are over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from redsync.testing.simulator.simulation import Simulation

__all__ = ["Calm"]


class Calm:
    """Whether faults are in effect, and when the last one ended. `stir` it at every `Faulted`."""

    def __init__(self, sim: Simulation) -> None:
        self._sim: Final = sim
        self._latest: Final = [node.clock.now() for node in sim.nodes]
        self._stirred = 0.0

    def stir(self) -> None:
        """Take note that a fault begins or ends; called before a clock jumps."""
        self._stirred = self._sim.now
        self._latest[:] = [max(shown, node.clock.now()) for shown, node in zip(self._latest, self._sim.nodes, strict=True)]

    def lag(self, node: int) -> float:
        """Return by how many seconds a node's clock is behind what it has shown: its keys last longer by that."""
        return max(self._latest[node] - self._sim.nodes[node].clock.now(), 0.0)

    def lasted(self) -> float:
        """Return for how many seconds all has been well; 0.0 while it is not.

        All is well while every node is up and shows later times than ever before, nothing is wrong with the network, and
        no machine stands still; crashed ones do not matter.
        """
        sim = self._sim
        if (
            sim.network.troubled
            or any(node.state != "up" or self.lag(node.index) for node in sim.nodes)
            or any(machine.paused and not machine.crashed for machine in sim.machines)
        ):
            self._stirred = sim.now
        return sim.now - self._stirred
