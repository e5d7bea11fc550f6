"""The statements of a scenario about groups: one function for each kind. Servers are called `1a`, `1b` ..."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from redsync.testing.simulator.groups import Group
    from redsync.testing.simulator.replication import GroupServer
    from redsync.testing.simulator.stage import Stage

__all__ = ["cut_off", "do_server", "heal", "isolate", "promote", "reset", "tell"]


def promote(stage: Stage, servers: str) -> None:
    """Let the Sentinels promote a server."""
    group, (server,) = _find(stage, servers)
    group.fail_over(server)


def tell(stage: Stage, servers: str, verb: str) -> None:
    """Let a server learn the latest decision, or not."""
    group, (server,) = _find(stage, servers)
    group.tell(server, math.inf if verb == "not told" else stage.sim.now)


def reset(stage: Stage, nodes: str, seconds: str) -> None:
    """Let the Sentinels of groups forget the replicas for a while."""
    for node in nodes.split():
        stage.sim.groups[int(node) - 1].reset(float(seconds))


def do_server(stage: Stage, servers: str, verb: str) -> None:
    """Let a server do something."""
    _, (server,) = _find(stage, servers)
    deeds = {"crashes": server.crash, "hangs": server.hang, "resumes": server.resume, "restarts": server.restart}
    deeds[verb]()


def isolate(stage: Stage, servers: str) -> None:
    """Let servers reach only each other."""
    group, apart = _find(stage, servers)
    group.isolate(apart)


def heal(stage: Stage, nodes: str) -> None:
    """Let all servers of groups reach each other."""
    for node in nodes.split():
        stage.sim.groups[int(node) - 1].heal()


def cut_off(stage: Stage, who: str, servers: str, sentinels: str | None) -> None:
    """Let no packets through between a machine and servers of one group, and perhaps its Sentinels."""
    group, ends = _find(stage, servers)
    stage.sim.cut_off(stage.machine(who), [*ends, *(group.sentinels if sentinels else ())])


def _find(stage: Stage, names: str) -> tuple[Group, list[GroupServer]]:
    """Return the group of some servers, and the servers."""
    group = stage.sim.groups[int(names.partition(" ")[0][:-1]) - 1]
    return group, [server for server in group.servers if server.name.removeprefix("node-") in names.split()]
