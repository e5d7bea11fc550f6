"""Migrations: the keys of a slot move from one master to another, one by one.

As with `CLUSTER SETSLOT` and `MIGRATE`: the old master marks the slot as leaving, keys move in any order, each at one
instant, and when none is left the new master owns the slot. A failover of the old master in between makes it forget
that the slot is leaving, so the operator must mark it again; until then the keys that have arrived are where no client
looks. An aborted move first takes all keys back: without that, declaring the slot stable would silently lose them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from redsync.testing.simulator.cluster_servers import ClusterServer
    from redsync.testing.simulator.clusters import Cluster, Shard

__all__ = ["Migration"]


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
        self._over = self._returns = False
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
            if self._returns:
                self._stay()
            else:
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
        before, after = (target, source) if self._returns else (source, target)
        keys = before.keys_of(self._tag)
        if not keys:
            return False
        key = self._cluster.random.choice(keys)
        found = before.store.look(key)
        assert found is not None, "the key was listed a moment ago"
        # If both have the key, that of the slot's owner is newer.
        if not self._returns or source.store.look(key) is None:
            after.take(key, *found)
        before.release_key(key)
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

    def abort(self) -> None:
        """Leave the slot where it was, as soon as all moved keys are back."""
        self._returns = True
        self._note(f"will stay with {self._source.name}")

    def _stay(self) -> None:
        self._leave()
        self._source.leaving.pop(self._place, None)
        self._note(f"stays with {self._source.name}")

    def _leave(self) -> None:
        self._over = True
        del self._cluster.moves[self._place]

    def _note(self, text: str) -> None:
        self._cluster.note("move", f"slot {self._slot} {text}")
