"""What happens to groups in a scenario: one function for each kind of statement. Servers are called `1a`, `1b` ..."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from redsync.testing.simulator.groups import Group
    from redsync.testing.simulator.replication import GroupServer
    from redsync.testing.simulator.stage import Stage

__all__ = ["cut_off", "do_server", "heal", "isolate", "promote", "withhold"]


def promote(stage: Stage, servers: str) -> None:
    """Let the Sentinels decide who is the master."""
    group, (server,) = _find(stage, servers)
    group.fail_over(server)


def withhold(stage: Stage, servers: str) -> None:
    """Let a server not hear of the latest decision."""
    group, (server,) = _find(stage, servers)
    group.withhold(server)


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
    """Let nothing through between a machine and servers of one group, and perhaps its Sentinels."""
    group, ends = _find(stage, servers)
    stage.sim.cut_off(stage.machine(who), [*ends, *(group.sentinels if sentinels else ())])


def _find(stage: Stage, names: str) -> tuple[Group, list[GroupServer]]:
    """Return the group of servers, and these."""
    group = stage.sim.groups[int(names.split()[0][:-1]) - 1]
    return group, [server for server in group.servers if server.name.removeprefix("node-") in names.split()]
