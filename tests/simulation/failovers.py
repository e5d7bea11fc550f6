"""Random faults of groups: failovers, isolated masters, Sentinels and replicas in trouble.

They come in addition to those of `faults`, which hit the present masters. Any replica that answers the Sentinels may be
promoted, however little data it has. An isolated master keeps the clients on its side, and those that were not cut off
from it. When it can be reached again, it may be promoted again before it learns that it was replaced.

In clusters shards fail over, and slots move, move back, or lose their keys. In the end every node gets its own master.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from redsync.testing.simulator.faults import Injector
from tests.simulation.groups import Group

if TYPE_CHECKING:
    from tests.simulation.groups import Group, GroupServer, VirtualSentinel
    from tests.simulation.simulated_clusters import Cluster, Shard
    from tests.simulation.trial import Trial
    from tests.simulation.trial_nodes import TrialNode

_LAGS: Final = (0.02, 0.1, 0.5, 2.0)
"""Seconds that changes may take longer."""

_NOTICED: Final = 0.5
"""Seconds after which the Sentinels replace a server that does not answer, at most."""


class Failovers(Injector):
    """Causes faults of groups until an instant, and ends them then. Arguments as for `Injector`."""

    _sim: Trial

    def __init__(self, sim: Trial, *, until: float, every: float, lasting: float) -> None:
        super().__init__(sim, "failovers", until=until, every=every, lasting=lasting)

    def _weighted(self) -> list[tuple[int, Callable[..., object]]]:
        return [*self._of_servers(), (1, self._trouble_sentinel), (1, self._reset)]

    def _of_servers(self) -> list[tuple[int, Callable[..., object]]]:
        return [
            (3, self._promote),
            (5, self._isolate),
            (3, self._crash_master),
            (2, self._trouble_server),
            (2, self._lag),
        ]

    def start(self) -> None:
        """Begin to cause faults."""
        for group in self._sim.groups:
            group.slowness = self._rng.choice([0.1, 1.0, self._lasting, 2 * self._lasting])
        super().start()

    def _strike(self) -> None:
        self._rng.choice(self._kinds)(self._rng.choice(self._sim.groups))
        self._wait()

    def _end(self) -> None:
        for group in self._sim.groups:
            group.heal()
        for sentinel in self._sim.sentinels:
            sentinel.restart()

    def _soon(self, action: Callable[..., object], *args: object) -> None:
        self._sim.timeline.after(_NOTICED * self._rng.random(), action, *args)

    def _promote(self, group: Group) -> None:
        """Promote any replica that answers, or an old master that does not know that it was replaced."""
        candidates = group.candidates()
        if candidates and self._sim.now < self._until:
            group.fail_over(self._rng.choice(candidates))

    def _promote_other(self, group: Group, than: GroupServer) -> None:
        if group.master is than:
            self._promote(group)

    def _isolate(self, group: Group) -> None:
        """Cut the master off, with some replicas, a Sentinel and clients; soon another server is promoted."""
        if group.apart:
            return
        rng, master = self._rng, group.master
        replicas = [server for server in group.servers if server is not master]
        along = rng.sample(replicas, rng.choice([0, 0, 1, len(replicas) - 1]) if len(replicas) > 1 else 0)
        apart = [master, *along]
        group.isolate(apart)
        if rng.random() < 0.5:
            for sentinel in group.sentinels[:1]:
                group.deafen(sentinel)
        near: list[TrialNode | VirtualSentinel] = [*apart, *(each for each in group.sentinels if each in group.deaf)]
        far = [each for each in self._whole(group) if each not in near]
        for machine in self._sim.machines:
            where = rng.random()
            if where < 0.3:
                self._sim.cut_off(machine, far)
            elif where < 0.7:
                self._sim.cut_off(machine, near)
        self._soon(self._promote_other, group, master)
        # Some last until the quarantine of the new master is over.
        lasting = rng.choice([rng.random() ** 2, rng.uniform(1.0, 2.0)]) * self._lasting
        self._sim.timeline.after(lasting, self._rejoin, group, master)

    def _whole(self, group: Group) -> Sequence[TrialNode | VirtualSentinel]:
        """Return the servers that a machine on one side of a group's partition may be cut off from."""
        return group.members()

    def _rejoin(self, group: Group, old: GroupServer) -> None:
        """End the isolation; perhaps the present master dies, and the old one is promoted again as it is."""
        present = group.master
        group.heal()
        if self._rng.random() < 0.7:
            self._sim.heal()
        if self._rng.random() < 0.5 and present is not old and old.follows is None and self._sim.now < self._until:
            present.crash()
            self._later(present.restart)
            if old in group.candidates():
                group.fail_over(old)

    def _crash_master(self, group: Group) -> None:
        master = group.master
        master.crash(dark=self._rng.random() < 0.3)
        self._soon(self._promote_other, group, master)
        self._later(partial(master.restart, forget=self._rng.random() < 0.3))

    def _trouble_server(self, group: Group) -> None:
        server = self._rng.choice(group.servers)
        if self._rng.random() < 0.5:
            server.hang()
            self._later(server.resume)
        else:
            server.crash()
            self._later(partial(server.restart, forget=self._rng.random() < 0.3))

    def _lag(self, group: Group) -> None:
        group.delay(self._rng.choice(_LAGS))
        self._later(group.delay, 0.0)

    def _trouble_sentinel(self, group: Group) -> None:
        sentinel = self._rng.choice(group.sentinels)
        if self._rng.random() < 0.5:
            sentinel.crash()
            self._later(sentinel.restart)
        else:
            group.deafen(sentinel)
            self._later(group.heal)

    def _reset(self, group: Group) -> None:
        group.reset(self._lasting * self._rng.random() ** 2)


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

    def _whole(self, group: Group) -> Sequence[TrialNode | VirtualSentinel]:
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
        if migration is not None and rng.random() < 0.2:
            self._soon(self._force, place)

    def _force(self, place: int) -> None:
        migration = self._cluster.moves.get(place)
        if migration is not None and not migration.force():
            self._sim.timeline.after(_AGAIN, self._force, place)

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
