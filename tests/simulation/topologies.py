"""Worlds: the nodes of a simulation, one class for each kind of node.

A world makes the servers and their environment. It hides all differences between kinds of nodes, so checkers and faults
do not have to know the kinds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from redsync._core.scripts import Script
from redsync.testing.simulator.simulation import Checker
from tests.simulation.checks import OF_GROUPS, OF_KIND
from tests.simulation.failovers import Failovers
from tests.simulation.groups import Group
from tests.simulation.trial_nodes import TrialNode

if TYPE_CHECKING:
    from tests.simulation.groups import VirtualSentinel
    from tests.simulation.trial import Trial


class World:
    """The nodes of a simulation; here they are single servers.

    Attributes:
        CHECKERS: The checkers of runs by seed, by the kind of synchronizer.
        sim: The simulation.
        nodes: Each node, as checkers and faults see it now.
        groups: The groups of servers, each a master and its replicas; empty if no server has replicas.
        servers: All servers.
        sentinels: All Sentinels.
    """

    CHECKERS: ClassVar[Mapping[str, tuple[type[Checker], ...]]] = OF_KIND
    nodes: list[Any]
    groups: list[Any]
    servers: Sequence[TrialNode]
    sentinels: list[VirtualSentinel]

    def __init__(self, sim: Trial, nodes: int, replicas: int | None, scripts: Mapping[str, Script]) -> None:
        """Make the servers for `nodes` nodes with `replicas` replicas each; scripts as for `Trial`."""
        self.sim = sim
        self.groups, self.sentinels = [], []
        self._make(nodes, replicas, scripts)

    def _make(self, nodes: int, _replicas: int | None, scripts: Mapping[str, Script]) -> None:
        self.servers = self.nodes = [TrialNode(self.sim, i, scripts) for i in range(nodes)]

    @property
    def urls(self) -> list[str]:
        """The URLs from which a client makes its nodes."""
        return [f"redis://{node.name}" for node in self.nodes]

    def servers_of(self, index: int) -> Sequence[TrialNode]:
        """Return the servers that a node's failovers can promote, and its master."""
        return [self.nodes[index]]

    def start_faults(self, *, until: float, every: float, lasting: float) -> None:
        """Start the faults that only such nodes have; arguments as for `Injector`."""


class SentinelGroups(World):
    """Nodes that are Sentinel groups."""

    CHECKERS = OF_GROUPS
    groups: list[Group]

    def _make(self, nodes: int, replicas: int | None, scripts: Mapping[str, Script]) -> None:
        assert replicas is not None, "without replicas nodes are single servers"
        self.groups = [Group(self.sim, i, replicas, scripts) for i in range(nodes)]
        self.nodes = [group.master for group in self.groups]
        self.servers = [server for group in self.groups for server in group.servers]
        self.sentinels = [sentinel for group in self.groups for sentinel in group.sentinels]

    @property
    def urls(self) -> list[str]:
        """One URL for each group."""
        return [group.url for group in self.groups]

    def servers_of(self, index: int) -> Sequence[TrialNode]:
        """Return all servers of a group."""
        return self.groups[index].servers

    def start_faults(self, *, until: float, every: float, lasting: float) -> None:
        """Start failovers, and the faults that lead to them."""
        Failovers(self.sim, until=until, every=every, lasting=lasting).start()


def world_for(replicas: int | None, *, cluster: bool) -> type[World]:
    """Return the class of world for single servers, for nodes with replicas, or for a cluster."""
    if cluster:
        from tests.simulation.simulated_clusters import Cluster  # late: the module imports this one

        return Cluster
    return World if replicas is None else SentinelGroups
