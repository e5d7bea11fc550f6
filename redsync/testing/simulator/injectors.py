"""The base of all random faults, and those of the wire and of pushes, which come in addition to those of `faults`.

On the wire nodes forget their scripts, redirect to another node, end clients' connections, and never answer new ones.
Connections end in the middle of a command or a reply, and machines accept a few hundred bytes at a time.

Clients for threads get wake-ups and hand-overs over another connection than the replies to their calls. If packets of
that one are lost, pushes come seconds after replies that nodes sent later.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from redsync.testing.simulator.machines import Machine
    from redsync.testing.simulator.simulation import Simulation

__all__ = ["Injector", "LatePushes", "WireFaults", "shape_wire"]

_SPLITS = (0.0, 0.0, 0.05, 0.5)
_ROOMS = (1 << 18, 1 << 18, 1 << 18, 1 << 14)
"""Bytes of a connection that a machine keeps: room for all scripts, which a new node gets at once, or for some."""

_NARROW = (150, 300, 900)
"""Bytes that it keeps for a while: a few commands, or half of one. If it never kept more, no client could connect."""

_PUSH_DELAYS = (0.05, 0.5, 3.0)
"""Extra seconds that pushes may take: less than a round, as long as a waiter sleeps, and longer than nodes keep places.
"""


def shape_wire(sim: Simulation) -> None:
    """Set, by the seed, in which pieces bytes arrive, and how many of them leave a client at once."""
    rng, network = sim.random_for("pieces"), sim.network
    network.split, network.room = rng.choice(_SPLITS), rng.choice(_ROOMS)


class Injector(ABC):
    """Causes random faults until an instant, and then ends them.

    Args:
        sim: The simulation.
        source: The name of its random source: each has its own, so its faults are the same without the others.
        until: The instant of true time at which all faults end.
        every: The mean pause in seconds between two faults.
        lasting: The longest duration of a fault, in seconds; a lease or two.
    """

    def __init__(self, sim: Simulation, source: str, *, until: float, every: float, lasting: float) -> None:
        self._sim: Final = sim
        self._until: Final = until
        self._every: Final = every
        self._lasting: Final = lasting
        self._rng: Final = sim.random_for(source)
        self._kinds: Final = [kind for weight, kind in self._weighted() for _ in range(weight)]

    @abstractmethod
    def _weighted(self) -> list[tuple[int, Callable[..., object]]]:
        """Return the kinds of faults, each with its relative frequency."""

    @abstractmethod
    def _end(self) -> None:
        """End all faults."""

    def start(self) -> None:
        """Begin to cause faults."""
        self._sim.timeline.schedule(self._until, None, self._end)
        self._wait()

    def _wait(self) -> None:
        pause = self._rng.expovariate(1 / self._every)
        if self._sim.now + pause < self._until:
            self._sim.timeline.after(pause, self._strike)

    def _strike(self) -> None:
        self._rng.choice(self._kinds)()
        self._wait()

    def _later(self, action: Callable[..., object], *args: object) -> None:
        """Call `action` when the present fault has lasted long enough; most faults are short."""
        self._sim.timeline.after(self._lasting * self._rng.random() ** 2, action, *args)

    def _machine(self) -> Machine | None:
        living = [machine for machine in self._sim.machines if not machine.crashed]
        return self._rng.choice(living) if living else None


class WireFaults(Injector):
    """Causes faults of the wire until an instant; the caller then ends most of them. Arguments as for `Injector`."""

    def __init__(self, sim: Simulation, *, until: float, every: float, lasting: float) -> None:
        self._usual: Final = sim.network.room
        super().__init__(sim, "wire faults", until=until, every=every, lasting=lasting)

    def _weighted(self) -> list[tuple[int, Callable[..., object]]]:
        return [
            (3, self._forget_scripts),
            (2, self._redirect),
            (3, self._tear),
            (3, self._kick),
            (1, self._ignore),
            (2, self._narrow),
        ]

    def _end(self) -> None:
        self._sim.narrow(self._usual)

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
        machine = self._machine()
        if machine is not None:
            nodes = self._some_nodes()
            there, back = self._rng.choice([(0.1, 0.0), (0.0, 0.1), (0.1, 0.1), (0.0, 0.5), (0.5, 0.0)])
            self._sim.tear(machine, *nodes, there=there, back=back)
            self._later(self._sim.tear, machine, *nodes)

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
        self._later(self._end)


class LatePushes(Injector):
    """Delays pushes until an instant; the caller then ends the last delays. Arguments as for `Injector`."""

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
