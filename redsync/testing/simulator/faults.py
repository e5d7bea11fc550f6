"""Random faults: the seed decides which, when and for how long.

Each kind of fault is a method that causes it and may schedule its end. When the time of faults is over, the nemesis
ends them all, so that the rest of the run shows whether programs recover.

Faults of the wire come in addition. Nodes forget their scripts, redirect to another node, end clients' connections, and
never answer new ones. Connections end in the middle of a command or a reply, and machines accept a few hundred bytes at
a time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from redsync.testing.simulator.machines import Machine
    from redsync.testing.simulator.simulation import Simulation
    from redsync.testing.simulator.virtual_nodes import VirtualNode

__all__ = ["Injector", "Nemesis"]

_WITHIN = 0.0049
"""How far a clock's rate may be off: no two clocks differ by more than the default `drift_factor` of 1 %."""

_NARROW = (150, 300, 900)
"""Bytes of a connection that a machine keeps for a while: a few commands, or half of one. If it never kept more, no
client could connect.
"""


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
        self._sim = sim
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

    def _some_nodes(self, *counts: int) -> list[int]:
        """Return the indices of random nodes: as many as one of the counts, drawn at random, or all of them."""
        total = len(self._sim.nodes)
        return self._rng.sample(range(total), min(self._rng.choice([*counts, total]), total))

    def _machine(self) -> Machine | None:
        living = [machine for machine in self._sim.machines if not machine.crashed]
        return self._rng.choice(living) if living else None


class Nemesis(Injector):
    """Causes faults in a simulation until an instant, and none afterwards.

    Args:
        sim: The simulation.
        until: The instant of true time at which all faults end.
        every: The mean pause in seconds between two faults.
        lasting: The longest duration of a fault, in seconds; a lease or two.
        wire: The mean pause in seconds between two faults of the wire, in addition to other faults; None for none.
    """

    _delays: tuple[float, ...] = (0.02, 0.1, 0.5, 2.0)
    """Extra seconds that packets may take."""
    _counts: tuple[int, ...] = (1, 1, 1, 2)
    """How many nodes a fault may hit, besides all."""

    def __init__(
        self,
        sim: Simulation,
        *,
        until: float,
        every: float = 1.0,
        lasting: float = 4.0,
        wire: float | None = None,
    ) -> None:
        super().__init__(sim, "faults", until=until, every=every, lasting=lasting)
        self._wire: Final = None if wire is None else _WireFaults(sim, until=until, every=wire, lasting=lasting)
        self._flushed_at = -float("inf")

    def _weighted(self) -> list[tuple[int, Callable[..., object]]]:
        return [
            (3, self._slow),
            (3, self._lose),
            (4, self._cut),
            (4, self._crash_nodes),
            (4, self._hang_node),
            (3, self._refuse),
            (3, self._pause_machine),
            (2, self._drift),
            (1, self._flush_node),
            (1, self._crash_machine),
            (1, self._jump),
        ]

    def start(self) -> None:
        """Begin to cause faults."""
        super().start()
        if self._wire is not None:
            self._wire.start()

    def _end(self) -> None:
        """End all faults; crashed machines stay crashed."""
        self._sim.heal()
        for node in self._sim.servers:
            node.resume()
            node.restart()
            node.recover()
        for machine in self._sim.machines:
            machine.resume()

    def _node(self) -> VirtualNode:
        return self._rng.choice(self._sim.nodes)

    # The network.

    def _slow(self) -> None:
        machine, nodes = self._machine(), self._some_nodes(*self._counts)
        if machine is not None:
            self._sim.slow(machine, *nodes, seconds=self._rng.choice(self._delays))
            self._later(self._sim.heal, machine, *nodes)

    def _lose(self) -> None:
        machine, nodes = self._machine(), self._some_nodes(*self._counts)
        if machine is not None:
            rates = self._rng.choice([(0.1, 0.0), (0.0, 0.1), (0.1, 0.1), (0.5, 0.0), (0.0, 0.5)])
            self._sim.lose(machine, *nodes, there=rates[0], back=rates[1])
            self._later(self._sim.heal, machine, *nodes)

    def _cut(self) -> None:
        machine, nodes = self._machine(), self._some_nodes(*self._counts)
        if machine is not None:
            there, back = self._rng.choice([(True, True), (True, False), (False, True)])
            self._sim.cut(machine, *nodes, there=there, back=back)
            self._later(self._sim.heal, machine, *nodes)

    # Nodes.

    def _crash_nodes(self) -> None:
        forget, dark = self._rng.random() < 0.3, self._rng.random() < 0.3
        older = self._rng.random() < 0.6
        for index in self._some_nodes(*self._counts):
            node = self._sim.nodes[index]
            node.crash(dark=dark)
            self._later(partial(node.restart, forget=forget, lost=self._lost() if older else 0.0))

    def _lost(self) -> float:
        """Return how many seconds of data are lost: data not synced yet, or all since a snapshot."""
        return self._rng.choice([0.001, 0.02, 1.0, 2 * self._lasting]) * self._rng.random()

    def _hang_node(self) -> None:
        node = self._node()
        node.hang()
        self._later(node.resume)

    def _refuse(self) -> None:
        """Let nodes answer errors."""
        code = self._rng.choice(["BUSY", "BUSY", "LOADING", "MISCONF", "OOM", "READONLY", "NOREPLICAS"])
        for index in self._some_nodes(*self._counts):
            node = self._sim.nodes[index]
            node.refuse(code)
            self._later(node.recover)

    def _flush_node(self) -> None:
        # If all nodes are emptied at once they look like new ones, so within one lease only a minority is emptied.
        if len(self._sim.nodes) >= 3 and self._sim.now - self._flushed_at > self._lasting:
            self._flushed_at = self._sim.now
            self._node().flush()

    # Machines.

    def _pause_machine(self) -> None:
        machine = self._machine()
        if machine is not None:
            machine.pause()
            self._later(machine.resume)

    def _crash_machine(self) -> None:
        machine = self._machine()
        if machine is not None and sum(not each.crashed for each in self._sim.machines) > 1:
            machine.crash(dark=self._rng.random() < 0.3)

    # Clocks.

    def _drift(self) -> None:
        """Let one clock or all run at a wrong rate, within what clients allow for."""
        hosts: list[Machine | VirtualNode] = [*self._sim.machines, *self._sim.servers]
        for host in hosts if self._rng.random() < 0.5 else [self._rng.choice(hosts)]:
            host.drift(1.0 + _WITHIN * self._rng.choice([-1.0, 1.0, self._rng.uniform(-1.0, 1.0)]))

    def _jump(self) -> None:
        """Let a clock jump in the direction that only costs time."""
        if self._rng.random() < 0.5:
            self._node().jump(-self._lasting * self._rng.random())
        elif (machine := self._machine()) is not None:
            machine.jump(self._lasting * self._rng.random())


class _WireFaults(Injector):
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

    def _forget_scripts(self) -> None:
        for index in self._some_nodes(1, 1, 2):
            self._sim.nodes[index].forget_scripts()

    def _redirect(self) -> None:
        code = self._rng.choice(["MOVED", "CLUSTERDOWN"])
        for index in self._some_nodes(1, 1, 2):
            self._sim.nodes[index].refuse(code)
            self._later(self._sim.nodes[index].recover)

    def _tear(self) -> None:
        machine = self._machine()
        if machine is not None:
            nodes = self._some_nodes(1, 1, 2)
            there, back = self._rng.choice([(0.1, 0.0), (0.0, 0.1), (0.1, 0.1), (0.0, 0.5), (0.5, 0.0)])
            self._sim.tear(machine, *nodes, there=there, back=back)
            self._later(self._sim.tear, machine, *nodes)

    def _kick(self) -> None:
        for index in self._some_nodes(1, 1, 2):
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
