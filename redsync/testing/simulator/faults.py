"""Random faults: the seed decides which, when and for how long.

Each kind of fault is a method that causes it and may schedule its end. When the time of faults is over, the nemesis
ends them all, so that the rest of the run shows whether programs recover.

Older data needs a separate fault, because the data that a node loses by chance is mostly outdated, or known to enough
other nodes. So nodes *rewind*: some that have just granted or learned something, mostly a quorum of them, soon come
back with data from just before that, one by one or all at once. Nodes that trusted their records would grant it again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from redsync._core.quorum import quorum_of
from redsync.testing.simulator.happenings import Executed
from redsync.testing.simulator.injectors import Injector, LatePushes, WireFaults

if TYPE_CHECKING:
    from redsync.testing.simulator.machines import Machine
    from redsync.testing.simulator.nodes import VirtualNode
    from redsync.testing.simulator.simulation import Simulation

__all__ = ["Nemesis"]

_WITHIN = 0.0049
"""How far a clock's rate may be off: no two clocks differ by more than the default `drift_factor` of 1 %."""

_DELAYS = (0.02, 0.1, 0.5, 2.0)
_LONG_DELAYS = (0.5, 2.0, 10.0, 30.0, 60.0, 120.0)
"""Extra seconds that packets may take. A client abandons a connection after 10 s of silence."""

_LOOKED_THROUGH = 2000
"""The number of latest happenings that are searched for grants."""

_LATEST = 6
"""The number of latest grants among which the one to forget is chosen."""


class Nemesis(Injector):
    """Causes faults in a simulation until an instant, and none afterwards.

    Args:
        sim: The simulation; `until`, `every` and `lasting` as for `Injector`.
        outlasting: Make most faults network faults, half of them between a machine and all nodes, with packet delays up
            to two minutes, so that they outlast connections.
        rewinding: The mean pause in seconds between two rewinds of nodes, in addition to other faults; None for none.
        wire: The mean pause in seconds between two faults of the wire, in addition to other faults; None for none.
        beyond: Also cause faults that no lock over nodes can survive: clocks that are wrong by more than clients allow
            for. They waive the promises that they break.
    """

    def __init__(
        self,
        sim: Simulation,
        *,
        until: float,
        every: float = 1.0,
        lasting: float = 4.0,
        beyond: bool = False,
        outlasting: bool = False,
        rewinding: float | None = None,
        wire: float | None = None,
    ) -> None:
        self._outlasting: Final = outlasting
        self._beyond: Final = beyond
        super().__init__(sim, "faults", until=until, every=every, lasting=lasting)
        self._rewinding: Final = rewinding
        self._wire: Final = None if wire is None else WireFaults(sim, until=until, every=wire, lasting=lasting)
        pushes = LatePushes(sim, until=until, every=every / 4, lasting=lasting) if sim.sets > 1 else None
        self._pushes: Final = pushes
        self._rewinds: Final = sim.random_for("rewinds")
        self._flushed_at = -float("inf")

    def _weighted(self) -> list[tuple[int, Callable[..., object]]]:
        return [
            (9 if self._outlasting else 3, self._slow),
            (3, self._lose),
            (9 if self._outlasting else 4, self._cut),
            (4, self._crash_nodes),
            (4, self._hang_node),
            (3, self._refuse),
            (3, self._pause_machine),
            (2, self._drift),
            (1, self._flush_node),
            (1, self._crash_machine),
            (1, self._jump),
            (4 if self._beyond else 0, self._break_clock),
        ]

    def start(self) -> None:
        """Begin to cause faults."""
        super().start()
        if self._rewinding is not None:
            self._wait_to_rewind(self._rewinding)
        if self._wire is not None:
            self._wire.start()
        if self._pushes is not None:
            self._pushes.start()

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

    def _some_nodes(self) -> list[int]:
        every = len(self._sim.nodes)
        count = self._rng.choice([1, 2, every, every] if self._outlasting else [1, 1, 1, 2, every])
        return self._rng.sample(range(every), min(count, every))

    def _slow(self) -> None:
        machine, nodes = self._machine(), self._some_nodes()
        if machine is not None:
            self._sim.slow(machine, *nodes, seconds=self._rng.choice(_LONG_DELAYS if self._outlasting else _DELAYS))
            self._later(self._sim.heal, machine, *nodes)

    def _lose(self) -> None:
        machine, nodes = self._machine(), self._some_nodes()
        if machine is not None:
            rates = self._rng.choice([(0.1, 0.0), (0.0, 0.1), (0.1, 0.1), (0.5, 0.0), (0.0, 0.5)])
            self._sim.lose(machine, *nodes, there=rates[0], back=rates[1])
            self._later(self._sim.heal, machine, *nodes)

    def _cut(self) -> None:
        machine, nodes = self._machine(), self._some_nodes()
        if machine is not None:
            there, back = self._rng.choice([(True, True), (True, False), (False, True)])
            self._sim.cut(machine, *nodes, there=there, back=back)
            self._later(self._sim.heal, machine, *nodes)

    # Nodes.

    def _crash_nodes(self) -> None:
        forget, dark = self._rng.random() < 0.3, self._rng.random() < 0.3
        older = self._rng.random() < 0.6
        for index in self._some_nodes():
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
        for index in self._some_nodes():
            node = self._sim.nodes[index]
            node.refuse(code)
            self._later(node.recover)

    def _flush_node(self) -> None:
        # If all nodes are emptied at once they look like new ones, so within one lease only a minority is emptied.
        if len(self._sim.nodes) >= 3 and self._sim.now - self._flushed_at > self._lasting:
            self._flushed_at = self._sim.now
            self._node().flush()

    # Older data.

    def _wait_to_rewind(self, every: float) -> None:
        self._sim.timeline.after(self._rewinds.expovariate(1 / every), self._rewind, every)

    def _rewind(self, every: float) -> None:
        if self._sim.now >= self._until:
            return
        rng, gifts = self._rewinds, self._gifts()
        if gifts:
            given_at = gifts[-1] if rng.random() < 0.5 else rng.choice(gifts)
            quorum = quorum_of(len(self._sim.nodes))
            count = min(rng.choice([1, quorum, quorum, quorum, len(given_at)]), len(given_at))
            chosen, apart = rng.sample(sorted(given_at), count), rng.choice([0.0, 0.0, 0.02, 0.2])
            for i, node in enumerate(chosen):
                self._sim.timeline.after(i * apart, self._go_back, self._sim.nodes[node], given_at[node])
            if rng.random() < 0.5:
                # The nodes that remember have no vote for a while.
                for other in self._sim.nodes:
                    if other.index not in chosen:
                        other.hang()
                        self._sim.timeline.after(rng.random(), other.resume)
        self._wait_to_rewind(every)

    def _go_back(self, node: VirtualNode, before: float) -> None:
        if node.state in {"up", "hung"} and self._sim.now < self._until:
            node.crash()
            # Nodes keep their state from before each command. Without the 1e-9 s, rounding would miss that instant.
            lost = max(self._sim.now - before - 1e-9, 0.0)
            self._sim.timeline.after(0.05 * self._rewinds.random(), partial(node.restart, lost=lost))

    def _gifts(self) -> list[dict[int, float]]:
        """Return, for each of the latest unreleased grants, which nodes granted it and when; the latest last."""
        told: dict[tuple[int, str, bytes], Any] = {}
        gifts: dict[tuple[object, ...], dict[int, float]] = {}
        for happening in self._sim.trace.happenings[-_LOOKED_THROUGH:]:
            if not isinstance(happening, Executed) or not happening.keys:
                continue
            node, script, key, args = happening.node, happening.script, happening.keys[0], happening.args
            if script.endswith(("_release", "_abandon")):
                gifts.pop((key, *args[:1]), None)
            elif _gives(happening, told.get((node, script, key))):
                # The same claim may be requested several times, with different arguments.
                gift = (key, *args[:1]) if script.endswith("_acquire") else (script, key, *args)
                gifts.setdefault(gift, {}).setdefault(node, happening.at)
            told[node, script, key] = happening.reply
        return sorted(gifts.values(), key=lambda given_at: max(given_at.values()))[-_LATEST:]

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


def _gives(executed: Executed, before: object) -> bool:
    """Return whether a node granted or learned something: compares its reply with its previous one to the same call."""
    script, reply = executed.script, executed.reply
    if script.endswith("_acquire"):
        first = reply[0] if reply.__class__ is list else reply
        return first == 1 or first.__class__ is bytes
    if script == "latch_exchange":
        # A new generation. Count-downs don't count here: one is no longer certain if a majority forgets.
        return reply.__class__ is list and (before.__class__ is not list or reply[0] != before[0])
    return script == "semaphore_resize" and reply != before
