"""Trials: our own simulations, to prove redsync.

Beyond what users can simulate, a trial's nodes may be Sentinel groups or the masters of a cluster, its clients may have
several sets of links, as those for threads, and omit nodes, and all checkers watch.

A trial also knows how much time has passed since the last fault, for checkers of what must happen once faults are over.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final

from redsync._core.scripts import Script
from redsync.testing.simulator.loop import Clock
from redsync.testing.simulator.machines import Machine
from redsync.testing.simulator.network import Server
from redsync.testing.simulator.simulation import Checker, Simulation
from redsync.testing.simulator.trace_events import Faulted, TraceEvent
from tests.simulation.checks import ALL
from tests.simulation.groups import Group, VirtualSentinel
from tests.simulation.topologies import World, world_for
from tests.simulation.trial_nodes import TrialNode
from tests.simulation.trial_runner import TrialRunner


class FaultFree:
    """Tells when the last fault ended, if all have. The simulation calls `stir` at every `Faulted`."""

    def __init__(self, sim: Trial) -> None:
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
            any(route.troubled for route in sim.network._routes.values())
            or any(not node.is_well or node.ignores or self.lag(node.clock) for node in sim.servers)
            or not all(group.has_converged for group in sim.groups)
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


class Trial(Simulation):
    """One run, used as a `Simulation`, with all checkers by default.

    Args:
        seed: Decides every random choice.
        replicas: The number of replicas of each node, which makes it a Sentinel group; None for single servers.
        cluster: True for nodes that are masters of a cluster, each with `replicas` replicas, by default one.
        unlisted: The number of last nodes that the clients of every other machine leave off their lists.
        sets: The number of sets of links that a client has; with several, its calls borrow them, as threads do.
        scripts: Sources that replace shipped scripts on all nodes, by name, to plant mistakes.
        checkers: The checkers to use.
        **options: As for `Simulation`.

    Attributes:
        world: The kind of nodes.
        nodes: The nodes; for a group, its present master.
        groups: The groups of servers with replicas, if any.
        servers: All servers: the nodes, or all members of groups.
        sentinels: All Sentinels.
        fault_free: Knows since when there are no faults.
        slowness: The probability that a process is slow or paused before it looks at the clock again; 0.0: no time
            passes while code runs.
    """

    RUNNER: ClassVar[type[TrialRunner]] = TrialRunner
    runners: dict[str, TrialRunner]  # type: ignore[assignment]  # all clients here have such drivers
    nodes: list[TrialNode]  # type: ignore[assignment]  # and all nodes are such
    servers: Sequence[TrialNode]
    world: World
    groups: list[Group]
    sentinels: list[VirtualSentinel]

    def __init__(
        self,
        seed: int,
        *,
        replicas: int | None = None,
        cluster: bool = False,
        unlisted: int = 0,
        sets: int = 1,
        scripts: Mapping[str, str] | None = None,
        checkers: Iterable[type[Checker]] = ALL,
        **options: Any,
    ) -> None:
        self._replicas: Final = replicas
        self._world: Final = world_for(replicas, cluster=cluster)
        self._unlisted: Final = unlisted
        self._scripts: Final = {name: _replace(name, source) for name, source in (scripts or {}).items()}
        self.sets: Final = sets
        self.slowness = 0.0
        super().__init__(seed, checkers=checkers, **options)
        self.fault_free: Final = FaultFree(self)

    def _make_servers(self, nodes: int) -> None:
        self.world = world = self._world(self, nodes, self._replicas, self._scripts)
        self.nodes, self.servers, self.groups, self.sentinels = (
            world.nodes,
            world.servers,
            world.groups,
            world.sentinels,
        )
        self.ends = [*self.servers, *self.sentinels]

    def servers_of(self, index: int) -> Sequence[TrialNode]:
        """Return the servers that can be the node with that index."""
        return self.world.servers_of(index)

    def urls_for(self, machine: Machine) -> list[str]:
        """Return the URLs of the nodes for a client on a machine."""
        urls = self.world.urls
        return urls[: len(urls) - self._unlisted] if self.machines.index(machine) % 2 else urls

    def cut_off(self, machine: Machine, ends: Sequence[Server]) -> None:
        """Let no packets through between a machine and some servers and Sentinels."""
        names = ", ".join(end.name for end in ends)
        self._note("partition", f"nothing gets through {machine.name} <-> {names}")
        for end in ends:
            route = self.network.route(machine, end)
            route.there.blocked = route.back.blocked = True

    def saw(self, event: TraceEvent) -> None:
        """Record an event, and let the checkers look."""
        if event.__class__ is Faulted:
            self.fault_free.stir()
        super().saw(event)


def _replace(name: str, source: str) -> Script:
    # This raises if no such script is shipped: the name has a typo.
    Script.load(name)
    return Script(name, source.encode(), hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest().encode())
