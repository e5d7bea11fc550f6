"""Clusters whose masters are nodes: a world of shards, fixed slots, and slots that move.

There is at least one more shard than nodes, so that a slot can move to a server that has no other. The cluster decides
which server is the master of each shard, and which shard owns each slot. Decisions are numbered (epochs): the master of
a shard has the number of the latest decision in its favour. A slot that has moved gives the new owner a number above
all others, unless it has the highest one already, as in Redis.

The effects of a decision come later, as in a group: each server learns of it, if it can be reached. Until then it
answers by what it knows, both to commands and to questions where slots are.

Left out: a failover never takes back a slot that had left its shard, as it might where a majority of the masters does
not know yet that it had. And no slot leaves a shard while its master has less than a majority of the shard: a master
that was replaced without knowing it might then gather votes for the slot, and the shard that now has the slot does not
share a server with that one.

Migrations: the keys of a slot move from one master to another, one by one.

As with `CLUSTER SETSLOT` and `MIGRATE`: the old master marks the slot as leaving, keys move in any order, each at one
instant, and when none is left the new master owns the slot. A failover of the old master in between makes it forget
that the slot is leaving, so the operator must mark it again; until then the keys that have arrived are where no client
looks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from redsync._core.clusters import KeyTagging, slots_of
from redsync._core.scripts import Script
from redsync.testing.simulator.trace_events import Faulted
from tests.simulation.checks import OF_CLUSTERS
from tests.simulation.cluster_servers import ClusterServer
from tests.simulation.failovers import Reshardings
from tests.simulation.groups import Group, VirtualSentinel
from tests.simulation.topologies import World
from tests.simulation.trial_nodes import TrialNode


class Migration:
    """The moving slot of one node; made by `Cluster.move`.

    Attributes:
        target: The shard that gets it.
    """

    def __init__(self, cluster: Cluster, place: int, target: Shard, pause: float) -> None:
        self._cluster: Final = cluster
        self._place: Final = place
        self._tag: Final = cluster.tags[place]
        self._slot: Final = cluster.slots[place]
        self._pause: Final = pause
        self._over = False
        self.target: Final = target

    @property
    def _source(self) -> ClusterServer:
        return self._cluster.shard_of(self._place).master

    def begin(self) -> None:
        """Announce the move, and move one key after the other from now on."""
        self._note(f"begins to move from {self._source.name} to {self.target.master.name}")
        self._step()

    def _step(self) -> None:
        if self._over:
            return
        if self._is_possible() and not self._move_key():
            self.end()
            return
        rng = self._cluster.random
        self._cluster.sim.timeline.after(self._pause * rng.random() + 0.001, self._step)

    def _is_possible(self) -> bool:
        source, target = self._source, self.target.master
        return all(
            server.state == "up" and server not in server.group.apart and server.view.number == source.view.number
            for server in (source, target)
        ) and (source.has(self._place) and source.group.is_whole)

    def _move_key(self) -> bool:
        """Move a key; return False if there was none."""
        source, target = self._source, self.target.master
        source.leaving[self._place] = target
        keys = source.keys_of(self._tag)
        if not keys:
            return False
        key = self._cluster.random.choice(keys)
        found = source.store.look(key)
        assert found is not None, "the key was listed a moment ago"
        target.take(key, *found)
        source.release_key(key)
        return True

    def end(self) -> None:
        """Make the new master own the slot, because all keys have moved."""
        self._leave()
        self._cluster.give(self._place, self.target)

    def force(self) -> bool:
        """Make the new master own the slot without the keys that have not moved yet; they are lost.

        Return False if that is impossible now: both masters must be reachable, as the old one must learn of it first.
        It would continue to serve its keys.
        """
        if not self._is_possible():
            return False
        self._leave()
        self._cluster.seize(self._place, self.target)
        return True

    def _leave(self) -> None:
        self._over = True
        del self._cluster.moves[self._place]

    def _note(self, text: str) -> None:
        self._cluster.note("move", f"slot {self._slot} {text}")


_LOOKS: Final = (0.02, 0.12)
"""Seconds between two looks for servers that have something to learn."""

_FEWEST: Final = 3
"""The smallest number of masters."""

_REPLICAS: Final = 1
"""The default number of replicas of each master."""


class View(NamedTuple):
    """A server's knowledge of the cluster.

    Attributes:
        number: The number of decisions it knows.
        shards: For each node, the index of the shard that owns its slot.
        masters: For each shard, its master.
        epochs: For each shard, the number of the decision that promoted its master.
        replicas: For each shard, the number of replicas that follow its master.
    """

    number: int
    shards: tuple[int, ...]
    masters: tuple[ClusterServer, ...]
    epochs: tuple[int, ...]
    replicas: tuple[int, ...]

    def owner(self, place: int) -> ClusterServer:
        """Return the server that owns the slot of a node."""
        return self.masters[self.shards[place]]

    def describe(self, slots: Sequence[int]) -> str:
        """Return the view as CLUSTER NODES prints it, with an extra slot for each shard."""
        lines = []
        for index, master in enumerate(self.masters):
            had = [str(slot) for place, slot in enumerate(slots) if self.shards[place] == index]
            words = [f"{master.name}:6379@16379 master - 0 0 {self.epochs[index]} connected", str(index), *had]
            lines.append(f"{master.name} {' '.join(words)}")
            others = [server for server in master.group.servers if server is not master]
            for number, server in enumerate(others):
                follows = master.name if number < self.replicas[index] else "-"
                lines.append(f"{server.name} {server.name}:6379@16379 slave {follows} 0 0 0 connected")
        return "".join(f"{line}\n" for line in lines)


class Shard(Group):
    """One shard of a cluster: a master and its replicas, without Sentinels; attributes as for `Group`.

    The other masters vote about a failover, so none is possible while only a minority of them knows the latest decision
    about the shard. Servers that are apart from their shard are apart from the whole cluster.

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

    def _make_server(self, suffix: str, scripts: Mapping[str, Script]) -> ClusterServer:
        return ClusterServer(self, suffix, scripts)

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
    def has_converged(self) -> bool:
        """True if the whole cluster has converged, and all servers of the shard are up and follow the master."""
        return super().has_converged and self.cluster.has_converged

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


class Cluster(World):
    """A cluster whose masters are nodes.

    Attributes:
        slots: The slot of each node.
        groups: The shards.
        moves: The moving slots, by node.
    """

    CHECKERS = OF_CLUSTERS
    groups: list[Shard]

    def _make(self, nodes: int, replicas: int | None, scripts: Mapping[str, Script]) -> None:
        self.slots = slots_of(nodes)
        self.tags = [KeyTagging(slot).tag for slot in self.slots]
        self.moves: dict[int, Migration] = {}
        self.random = self.sim.random_for("cluster")
        count = _REPLICAS if replicas is None else replicas
        self.groups = [Shard(self, i, count, scripts) for i in range(max(nodes + 1, _FEWEST))]
        self._decisions = 0
        self._shards = list(range(nodes))
        self._told_at: dict[ClusterServer, float] = {}
        self.servers: list[ClusterServer] = [server for shard in self.groups for server in shard.servers]
        self.nodes = [self.groups[i].master.as_node(i) for i in range(nodes)]
        for server in self.servers:
            server.view = self.view()
        self._look()

    @property
    def urls(self) -> list[str]:
        """One URL for all nodes; it lists the first masters."""
        seeds = ",".join(shard.servers[0].name for shard in self.groups)
        return [f"redis+cluster://{seeds}?nodes={len(self.slots)}&replicas={len(self.groups[0].servers) - 1}"]

    def servers_of(self, index: int) -> Sequence[TrialNode]:
        """Return all servers of the shard that owns the slot now."""
        return self.groups[self._shards[index]].servers

    def start_faults(self, *, until: float, every: float, lasting: float) -> None:
        """Begin to cause failovers, and to move slots."""
        Reshardings(self, until=until, every=every, lasting=lasting).start()

    # Decisions.

    def view(self) -> View:
        """Return the view of a server that knows all decisions."""
        return View(
            self._decisions,
            tuple(self._shards),
            tuple(shard.master for shard in self.groups),
            tuple(shard.epoch for shard in self.groups),
            tuple(shard.following for shard in self.groups),
        )

    def next_epoch(self) -> int:
        """Return a number above those of all masters."""
        return max(shard.epoch for shard in self.groups) + 1

    def shard_of(self, place: int) -> Shard:
        """Return the shard that owns the slot of a node."""
        return self.groups[self._shards[place]]

    def decide(self, *first: ClusterServer) -> None:
        """Let all servers learn of a decision that was just made: `first` at once, the others later."""
        self._decisions += 1
        for place, shard in enumerate(self._shards):
            self.nodes[place] = self.groups[shard].master.as_node(place)
        for server in self.servers:
            self._told_at[server] = self.sim.now + self.random.random() * server.group.slowness
        for server in first:
            server.learn(self.view())

    def give(self, place: int, shard: Shard, *first: ClusterServer) -> None:
        """Make a shard the owner of a node's slot, once its keys have moved, or without them."""
        if shard.epoch < self.next_epoch() - 1:
            shard.epoch = self.next_epoch()
        self._shards[place] = shard.index
        self.note("slot", f"slot {self.slots[place]} is owned by {shard.master.name}, epoch {shard.epoch}")
        self.decide(shard.master, *first)

    def seize(self, place: int, shard: Shard) -> None:
        """Make a shard the owner of a node's slot without its keys; the old owner learns of it first, and drops them.

        Otherwise the old owner would continue to serve them, and nothing else would show that they are lost.
        """
        source = self.shard_of(place).master
        self.note("loss", f"{len(source.keys_of(self.tags[place]))} keys of slot {self.slots[place]} are lost")
        self.give(place, shard, source)

    def move(self, place: int, shard: Shard, *, pause: float) -> Migration | None:
        """Begin to move the slot of a node to another shard; None if it is moving, or there already."""
        if place in self.moves or self.shard_of(place) is shard:
            return None
        self.moves[place] = migration = Migration(self, place, shard, pause)
        migration.begin()
        return migration

    # The effects of decisions.

    @property
    def has_converged(self) -> bool:
        """True if no slot is moving, no two nodes share a server, and all servers know that."""
        view = self.view()
        return (
            not self.moves
            and len(set(self._shards)) == len(self._shards)
            and all(server.view == view for server in self.servers)
        )

    def _look(self) -> None:
        view = self.view()
        for server in self.servers:
            reached = server.state == "up" and server not in server.group.apart
            if reached and server.view != view and self.sim.now >= self._told_at.get(server, 0.0):
                server.learn(view)
        self.sim.timeline.after(self.random.uniform(*_LOOKS), self._look)

    def note(self, kind: str, text: str) -> None:
        """Record an event of slots."""
        self.sim.saw(Faulted(self.sim.now, f"cluster {kind}", text))
