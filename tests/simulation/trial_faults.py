"""Faults that only trials have: such that outlast connections, clocks beyond what clients allow for, late pushes."""

from collections.abc import Callable
from typing import Any

from redsync.testing.simulator.faults import Injector, Nemesis
from redsync.testing.simulator.simulation import Simulation

_LONG_DELAYS = (0.5, 2.0, 10.0, 30.0, 60.0, 120.0)
"""Extra seconds that packets may take. A client abandons a connection after 10 s of silence."""

_PUSH_DELAYS = (0.05, 0.5, 3.0)
"""Extra seconds that pushes may take: less than a round, as long as a waiter sleeps, and longer than nodes keep places.
"""


class TrialNemesis(Nemesis):
    """Causes faults as `Nemesis` does; further arguments as there.

    Args:
        sim: The simulation.
        outlasting: Make most faults network faults, half of them between a machine and all nodes, with packet delays up
            to two minutes, so that they outlast connections.
        beyond: Also cause faults that no lock over nodes can survive: clocks that are wrong by more than clients allow
            for. They waive the promises that they break.
    """

    def __init__(self, sim: Simulation, *, outlasting: bool, beyond: bool, **options: Any) -> None:
        self._outlasting, self._beyond = outlasting, beyond
        if outlasting:
            self._delays, self._counts = _LONG_DELAYS, (1, 2, len(sim.nodes))
        super().__init__(sim, **options)

    def _weighted(self) -> list[tuple[int, Callable[..., object]]]:
        often = {self._slow, self._cut} if self._outlasting else ()
        usual = [(9 if kind in often else weight, kind) for weight, kind in super()._weighted()]
        return [*usual, *([(4, self._break_clock)] if self._beyond else [])]

    def _break_clock(self) -> None:
        machine, node = self._machine(), self._node()
        match self._rng.randrange(4):
            case 0:
                node.drift(1.0 + self._rng.uniform(0.02, 0.5))
            case 1:
                node.jump(self._lasting * self._rng.random())
            case 2 if machine is not None:
                machine.drift(1.0 - self._rng.uniform(0.02, 0.3))
            case _ if machine is not None:
                machine.jump(-self._lasting * self._rng.random())
            case _:
                pass


class LatePushes(Injector):
    """Delays pushes until an instant; the caller then ends the last delays. Arguments as for `Injector`.

    Clients for threads get wake-ups and hand-overs over another connection than the replies to their calls. If packets
    of that one are lost, pushes come seconds after replies that nodes sent later.
    """

    def __init__(self, sim: Simulation, *, until: float, every: float, lasting: float) -> None:
        super().__init__(sim, "late pushes", until=until, every=every, lasting=lasting)

    def _weighted(self) -> list[tuple[int, Callable[..., object]]]:
        return [(1, self._delay)]

    def _end(self) -> None:
        pass

    def _delay(self) -> None:
        machine = self._machine()
        if machine is not None:
            every = len(self._sim.nodes)
            nodes = self._rng.sample(range(every), self._rng.randint(1, every))
            self._sim.delay_pushes(machine, *nodes, seconds=self._rng.choice(_PUSH_DELAYS))
            self._later(self._sim.delay_pushes, machine, *nodes)
