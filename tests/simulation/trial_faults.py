"""Faults that only trials have: such that outlast connections, clocks beyond what clients allow for, late pushes.

Older data needs a separate fault, because the data that a node loses by chance is mostly outdated, or known to enough
other nodes. So nodes *rewind*: some that have just granted or learned something, mostly a quorum of them, soon come
back with data from just before that, one by one or all at once. Nodes that trusted their records would grant it again.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from redsync._core.quorum import quorum_of
from redsync.testing.simulator.faults import Injector, Nemesis
from redsync.testing.simulator.simulation import Simulation
from redsync.testing.simulator.trace_events import Executed
from redsync.testing.simulator.virtual_nodes import VirtualNode

_LONG_DELAYS = (0.5, 2.0, 10.0, 30.0, 60.0, 120.0)
"""Extra seconds that packets may take. A client abandons a connection after 10 s of silence."""

_PUSH_DELAYS = (0.05, 0.5, 3.0)
"""Extra seconds that pushes may take: less than a round, as long as a waiter sleeps, and longer than nodes keep places.
"""

_LOOKED_THROUGH = 2000
"""The number of latest events that are searched for grants."""

_LATEST = 6
"""The number of latest grants among which the one to forget is chosen."""


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


class Rewinds(Injector):
    """Brings nodes back with data from just before a grant, until an instant. Arguments as for `Injector`."""

    def __init__(self, sim: Simulation, *, until: float, every: float, lasting: float) -> None:
        super().__init__(sim, "rewinds", until=until, every=every, lasting=lasting)

    def _weighted(self) -> list[tuple[int, Callable[..., object]]]:
        return []

    def _end(self) -> None:
        pass

    def _strike(self) -> None:
        rng, grants = self._rng, self._latest_grants()
        if grants:
            given_at = grants[-1] if rng.random() < 0.5 else rng.choice(grants)
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
        self._wait()

    def _go_back(self, node: VirtualNode, before: float) -> None:
        if node.state in {"up", "hung"} and self._sim.now < self._until:
            node.crash()
            lost = self._sim.now - before + 1e-9  # else rounding could keep what was executed at that instant
            self._sim.timeline.after(0.05 * self._rng.random(), partial(node.restart, lost=lost))

    def _latest_grants(self) -> list[dict[int, float]]:
        """Return, for each of the latest unreleased grants, which nodes granted it and when; the latest last."""
        told: dict[tuple[int, str, bytes], Any] = {}
        grants: dict[tuple[object, ...], dict[int, float]] = {}
        for event in self._sim.trace.events[-_LOOKED_THROUGH:]:
            if not isinstance(event, Executed) or not event.keys:
                continue
            node, script, key, args = event.node, event.script, event.keys[0], event.args
            if script.endswith(("_release", "_abandon")):
                grants.pop((key, *args[:1]), None)
            elif _grants(event, told.get((node, script, key))):
                # The same claim may be requested several times, with different arguments.
                grant = (key, *args[:1]) if script.endswith("_acquire") else (script, key, *args)
                grants.setdefault(grant, {}).setdefault(node, event.at)
            told[node, script, key] = event.reply
        return sorted(grants.values(), key=lambda given_at: max(given_at.values()))[-_LATEST:]


def _grants(executed: Executed, before: object) -> bool:
    """Return whether a node granted or learned something: compares its reply with its previous one to the same call."""
    script, reply = executed.script, executed.reply
    if script.endswith("_acquire"):
        first = reply[0] if reply.__class__ is list else reply
        return first == 1 or first.__class__ is bytes
    if script == "latch_exchange":
        # A new generation. Count-downs don't count here: one is no longer certain if a majority forgets.
        return reply.__class__ is list and (before.__class__ is not list or reply[0] != before[0])
    return script == "semaphore_inspect" and reply.__class__ is before.__class__ is list and reply[0] > before[0]
