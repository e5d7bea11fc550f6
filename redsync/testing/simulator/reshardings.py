"""Random faults of clusters: failovers of shards, and slots that move, move back, stop halfway, or lose their keys.

They come in addition to those of `faults`, which hit the present masters. In the end every node gets its own master.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from redsync.testing.simulator.failovers import Failovers
from redsync.testing.simulator.groups import Group

if TYPE_CHECKING:
    from redsync.testing.simulator.clusters import Cluster, Shard
    from redsync.testing.simulator.groups import VirtualSentinel
    from redsync.testing.simulator.nodes import VirtualNode

__all__ = ["Reshardings"]

_PAUSES: Final = (0.0, 0.01, 0.1, 0.5)
"""Seconds between two moving keys, at most."""

_AGAIN: Final = 0.1
"""Seconds after which ending a move is tried again, while one of the two masters can't be reached."""


class Reshardings(Failovers):
    """Causes faults of a cluster until an instant; arguments as for `Injector`."""

    def __init__(self, cluster: Cluster, *, until: float, every: float, lasting: float) -> None:
        self._cluster: Final = cluster
        super().__init__(cluster.sim, until=until, every=every, lasting=lasting)

    def _weighted(self) -> list[tuple[int, Callable[..., object]]]:
        return [*self._of_servers(), (4, self._move), (4, self._move_back_and_forth)]

    def _whole(self, group: Group) -> Sequence[VirtualNode | VirtualSentinel]:
        """Return the servers of the shard, or of the whole cluster: all of them answer where slots are."""
        return self._cluster.servers if self._rng.random() < 0.5 else group.members()

    def _end(self) -> None:
        super()._end()
        self._part()

    def _part(self) -> None:
        """Give each node its own master, as soon as no slot is moving."""
        cluster, free = self._cluster, list(self._cluster.groups)
        for place in range(len(cluster.slots)):
            shard = cluster.shard_of(place)
            if shard in free:
                free.remove(shard)
            elif place not in cluster.moves:
                cluster.move(place, free.pop(), pause=0.0)
        self._sim.timeline.after(_AGAIN, self._part)

    def _place(self) -> int:
        return self._rng.randrange(len(self._cluster.slots))

    def _move(self, _group: Group) -> None:
        """Move a slot to any shard, perhaps to the master of another node."""
        self._begin(self._place(), self._rng.choice(self._cluster.groups))

    def _begin(self, place: int, shard: Shard) -> None:
        rng = self._rng
        migration = self._cluster.move(place, shard, pause=rng.choice(_PAUSES))
        if migration is None:
            return
        fate = rng.random()
        if fate < 0.2:
            self._soon(self._force, place)
        elif fate < 0.4:
            self._soon(self._abort, place)

    def _force(self, place: int) -> None:
        migration = self._cluster.moves.get(place)
        if migration is not None and not migration.force():
            self._sim.timeline.after(_AGAIN, self._force, place)

    def _abort(self, place: int) -> None:
        migration = self._cluster.moves.get(place)
        if migration is not None:
            migration.abort()

    def _move_back_and_forth(self, _group: Group) -> None:
        """Move a slot to another master, and soon back again, once or a few times."""
        place = self._place()
        home = self._cluster.shard_of(place)
        away = self._rng.choice([shard for shard in self._cluster.groups if shard is not home])
        self._swing(place, home, away, self._rng.choice([1, 1, 2, 4]))

    def _swing(self, place: int, home: Shard, away: Shard, times: int) -> None:
        if not times or self._sim.now >= self._until:
            return
        if place not in self._cluster.moves:
            self._begin(place, away if self._cluster.shard_of(place) is home else home)
            times -= self._cluster.shard_of(place) is away
        self._sim.timeline.after(
            self._rng.choice([0.05, 0.5, self._lasting]) * self._rng.random(), self._swing, place, home, away, times
        )
