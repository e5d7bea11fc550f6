"""Random faults of the wire: what real transports must cope with, in addition to the faults of `faults`.

Nodes forget their scripts, redirect to another node, end clients' connections, and never answer new ones. Connections
end in the middle of a command or a reply, and machines accept a few hundred bytes at a time. These faults have their
own random source, so that the other faults of a seed are the same without them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from redsync.testing.simulator.simulation import Simulation

__all__ = ["WireFaults", "shape_wire"]

_SPLITS = (0.0, 0.0, 0.05, 0.5)
_ROOMS = (1 << 18, 1 << 18, 1 << 18, 1 << 14)
"""Bytes of a connection that a machine keeps: room for all scripts, which a new node gets at once, or for some."""

_NARROW = (150, 300, 900)
"""Bytes that it keeps for a while: a few commands, or half of one. If it never kept more, no client could connect."""


def shape_wire(sim: Simulation) -> None:
    """Set, by the seed, in which pieces bytes arrive, and how many of them leave a client at once."""
    rng, network = sim.random_for("pieces"), sim.network
    network.split, network.room = rng.choice(_SPLITS), rng.choice(_ROOMS)


class WireFaults:
    """Causes faults of the wire until an instant; the caller then ends all faults. Arguments as for `Nemesis`."""

    def __init__(self, sim: Simulation, *, until: float, every: float, lasting: float) -> None:
        self._sim: Final = sim
        self._until: Final = until
        self._every: Final = every
        self._lasting: Final = lasting
        self._rng: Final = sim.random_for("wire faults")
        kinds: list[tuple[int, Callable[[], object]]] = [
            (3, self._forget_scripts),
            (2, self._redirect),
            (3, self._tear),
            (3, self._kick),
            (1, self._ignore),
            (2, self._narrow),
        ]
        self._usual: Final = sim.network.room
        self._kinds: Final = [kind for weight, kind in kinds for _ in range(weight)]

    def start(self) -> None:
        """Begin to cause faults."""
        self._sim.timeline.schedule(self._until, None, self._widen)
        self._wait()

    def _wait(self) -> None:
        pause = self._rng.expovariate(1 / self._every)
        if self._sim.now + pause < self._until:
            self._sim.timeline.after(pause, self._strike)

    def _strike(self) -> None:
        self._rng.choice(self._kinds)()
        self._wait()

    def _later(self, action: Callable[[], object]) -> None:
        self._sim.timeline.after(self._lasting * self._rng.random() ** 2, action)

    def _some_nodes(self) -> list[int]:
        every = len(self._sim.nodes)
        return self._rng.sample(range(every), min(self._rng.choice([1, 1, 2, every]), every))

    def _forget_scripts(self) -> None:
        for index in self._some_nodes():
            self._sim.nodes[index].forget_scripts()

    def _redirect(self) -> None:
        code = self._rng.choice(["MOVED", "CLUSTERDOWN"])
        for index in self._some_nodes():
            self._sim.nodes[index].refuse(code)
            self._later(self._sim.nodes[index].recover)

    def _tear(self) -> None:
        living = [machine for machine in self._sim.machines if not machine.crashed]
        if living:
            machine, nodes = self._rng.choice(living), self._some_nodes()
            there, back = self._rng.choice([(0.1, 0.0), (0.0, 0.1), (0.1, 0.1), (0.0, 0.5), (0.5, 0.0)])
            self._sim.tear(machine, *nodes, there=there, back=back)
            self._later(lambda: self._sim.tear(machine, *nodes))

    def _kick(self) -> None:
        for index in self._some_nodes():
            self._sim.nodes[index].kick()

    def _ignore(self) -> None:
        # Clients would not notice without a reason to connect.
        node = self._sim.nodes[self._rng.randrange(len(self._sim.nodes))]
        node.ignore()
        node.kick()
        self._later(node.recover)

    def _narrow(self) -> None:
        self._sim.narrow(self._rng.choice(_NARROW))
        self._later(self._widen)

    def _widen(self) -> None:
        self._sim.narrow(self._usual)
