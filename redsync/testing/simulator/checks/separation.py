"""Separation: one server is one vote.

Two slots of a cluster may come to one master, whose failure would then count as two. So whenever a client counts votes,
no two of its granted votes may come from one server. Votes from before the latest move or failover are ignored, as a
server may since have replaced one that had voted.

Not seen: two clients that take different ones of the two nodes for the voter. That does no harm: two majorities of the
nodes share a node, wherever that is.
"""

from __future__ import annotations

from typing import Final

from redsync._core.quorum import Choice
from redsync.testing.simulator.checks.checker import Checker, Simulation
from redsync.testing.simulator.happenings import Decided, Executed, Faulted

__all__ = ["Separation"]

_CHANGES: Final = {"cluster slot", "group failover"}
"""The faults by which a server comes to serve another node."""


class Separation(Checker):
    """No server gives two votes in one round."""

    name = "separation"
    watches = (Executed, Decided, Faulted)

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim)
        self._voted: Final[dict[tuple[str, int], dict[int, str]]] = {}

    def see(self, happening: Executed | Decided | Faulted) -> str | None:
        """Record voters, and look at votes when they are counted."""
        match happening:
            case Faulted():
                if happening.kind in _CHANGES:
                    self._voted.clear()
            case Executed():
                if happening.number and happening.server:
                    self._voted.setdefault((happening.client, happening.number), {})[happening.node] = happening.server
            case Decided():
                return self._look_at(happening)
        return None

    def _look_at(self, decided: Decided) -> str | None:
        counted: dict[str, int] = {}
        for node, server in self._voted.pop((decided.client, decided.number), {}).items():
            if decided.choices[node] is Choice.GRANTED:
                other = counted.setdefault(server, node)
                if other != node:
                    what = f"{decided.client} counts two votes of {server} for #{decided.number}"
                    return f"{what}: as node {other + 1} and as node {node + 1}"
        return None
