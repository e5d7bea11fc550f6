"""The statements of a scenario about clusters: one function for each kind. Shards are numbered from 1."""

from __future__ import annotations

from typing import TYPE_CHECKING

from redsync.testing.simulator.clusters import Cluster

if TYPE_CHECKING:
    from redsync.testing.simulator.stage import Stage

__all__ = ["give", "move", "stay"]


def move(stage: Stage, slot: str, shard: str, pause: str | None) -> None:
    """Move the slot of a node, key by key; `pause`: seconds between two keys, at most."""
    cluster = _cluster(stage)
    cluster.move(int(slot) - 1, cluster.groups[int(shard) - 1], pause=float(pause or 0.0))


def stay(stage: Stage, slot: str) -> None:
    """Abort the move of a slot; moved keys come back."""
    _cluster(stage).moves[int(slot) - 1].abort()


def give(stage: Stage, slot: str, shard: str) -> None:
    """Make a shard the owner of a node's slot, without its keys."""
    cluster = _cluster(stage)
    cluster.seize(int(slot) - 1, cluster.groups[int(shard) - 1])


def _cluster(stage: Stage) -> Cluster:
    world = stage.sim.world
    assert isinstance(world, Cluster), "the story has the setting: cluster yes"
    return world
