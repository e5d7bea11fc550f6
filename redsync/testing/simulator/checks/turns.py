"""Turns: each node grants a fair lock to the head of its queue only, and all nodes order their queues alike.

Whenever a node makes a new claim on a fair lock, nobody else whose place it has to keep (see `queues`) comes first: has
a lower ticket than the one who is granted, or an equal one and the lesser name. Who has no place comes last.

It holds at every instant, whatever faults there are. `fairness` rests on it, and so does the agreement of nodes: if
they ordered equal tickets each in its own way, waiters could be granted a minority each, time and again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from redsync.testing.simulator.checks.checker import Checker, describe
from redsync.testing.simulator.checks.queues import Queues, asked_ticket
from redsync.testing.simulator.happenings import Executed, Faulted

if TYPE_CHECKING:
    from redsync.testing.simulator.simulation import Simulation

__all__ = ["Turns"]

_NEW = 1


class Turns(Checker):
    """No node passes over who comes first."""

    name = "turns"
    watches = (Executed, Faulted)

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim)
        self._queues: Final = Queues(sim)

    def see(self, happening: Executed | Faulted) -> str | None:
        """Look at whom a node grants."""
        if isinstance(happening, Faulted):
            self._queues.forget(happening)
            return None
        self._queues.note(happening)
        if happening.reply != _NEW or asked_ticket(happening.script, happening.keys, happening.args) is None:
            return None
        owner: Any = happening.args[0]
        places = self._queues.places(happening.node, happening.keys[0])
        # Asked without a ticket it may still have a place, of an attempt that it was called off from.
        ours = [place for place in places if place.owner == owner]
        first = min(places, key=lambda place: place.rank, default=None)
        if first is None or first in ours:
            return None
        ticket = f"with ticket {ours[0].ticket}" if ours else "without a ticket"
        return (
            f"{self.sim.nodes[happening.node].name} granted {describe(happening.keys[0], owner)} {ticket}, "
            f"when it was the turn of {first.owner.decode()} with ticket {first.ticket}"
        )
