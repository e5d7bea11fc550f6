"""Shards: a master of a cluster and its replicas, without Sentinels.

The other masters vote about a failover, so none is possible while only a minority of them knows the latest decision
about the shard. Servers that are apart from their shard are apart from the whole cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from redsync._core.scripts import Script
from redsync.testing.simulator.cluster_servers import ClusterServer
from redsync.testing.simulator.groups import Group

if TYPE_CHECKING:
    from redsync.testing.simulator.clusters import Cluster
    from redsync.testing.simulator.virtual_sentinels import VirtualSentinel

__all__ = ["Shard"]


class Shard(Group):
    """One shard of a cluster; attributes as for `Group`.

    Attributes:
        cluster: The cluster.
    """

    WORD = "shard"
    servers: list[ClusterServer]  # type: ignore[assignment,misc]  # it makes no others
    master: ClusterServer

    def __init__(self, cluster: Cluster, index: int, replicas: int, scripts: Mapping[str, Script]) -> None:
        self.cluster = cluster
        super().__init__(cluster.sim, index, replicas, scripts)
        # The masters of a cluster were elected when it was made.
        self.epoch = index + 1

    def _make_server(self, letter: str, scripts: Mapping[str, Script]) -> ClusterServer:
        return ClusterServer(self, letter, scripts)

    def _make_sentinels(self) -> list[VirtualSentinel]:
        return []

    @property
    def following(self) -> int:
        """The number of servers that follow the master."""
        return sum(server.follows is self.master for server in self.servers)

    @property
    def is_whole(self) -> bool:
        """True if as many servers follow the master as acknowledge a vote: then they follow no other one."""
        return self.following >= len(self.servers) // 2

    @property
    def is_settled(self) -> bool:
        """True if the whole cluster is settled, and all servers of the shard are up and follow the master."""
        return super().is_settled and self.cluster.is_settled

    def _next_epoch(self) -> int:
        return self.cluster.next_epoch()

    def _install(self) -> None:
        self.cluster.decide(self.master)

    def _is_known(self) -> bool:
        others = [shard.master for shard in self.cluster.groups if shard is not self]
        knowing = sum(
            other.state == "up" and other not in other.group.apart and other.view.epochs[self.index] == self.epoch
            for other in others
        )
        return knowing + 1 > len(self.cluster.groups) // 2
