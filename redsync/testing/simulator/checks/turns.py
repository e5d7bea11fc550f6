"""Turns: each node grants a fair lock only to the head of its queue, and all nodes order their queues alike.

Whenever a node makes a new claim on a fair lock, because a client asks or because the node hands the lock over, no
other owner whose place it has to keep (see `queues`) comes first: none has a lower ticket than the new holder, or an
equal ticket and the lesser name. An owner without a place comes last.

It holds at every instant, whatever the faults. `fairness` rests on it, and so does the agreement of nodes: if nodes
ordered equal tickets differently, several waiters could each get a minority, time and again.
"""

from __future__ import annotations

from typing import Final

from redsync.testing.simulator.checks.checker import Checker, Simulation, describe
from redsync.testing.simulator.checks.kept import kept_at
from redsync.testing.simulator.checks.queues import Place, Queues, asked_ticket
from redsync.testing.simulator.checks.rounds import claims, owner_in
from redsync.testing.simulator.happenings import Executed, Faulted
from redsync.testing.simulator.values import Hash

__all__ = ["Turns"]

_NEW = 1
_HANDING = ("lock_release", "lock_abandon", "lock_force_release")


class Turns(Checker):
    """No node passes over the first in its queue."""

    name = "turns"
    watches = (Executed, Faulted)

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim)
        self._queues: Final = Queues(sim)
        self._holders: Final[dict[tuple[int, bytes], bytes | None]] = {}

    def see(self, happening: Executed | Faulted) -> str | None:
        """Look at the owner to which a node grants the lock."""
        if isinstance(happening, Faulted):
            self._queues.forget(happening)
            if happening.kind == "node restart older":
                # The owner that held the lock at the time of that data has it again.
                for node, key in self._holders:
                    if self.sim.nodes[node].name == happening.who:
                        self._holders[node, key] = self._holder(node, key)
            return None
        self._queues.note(happening)
        for key in self._keys(happening):
            if text := self._look_at(happening, key):
                return text
        return None

    @staticmethod
    def _keys(executed: Executed) -> list[bytes]:
        if executed.script in _HANDING:
            return [executed.keys[0]]
        return [claim.key for claim in claims(executed.script, executed.keys, executed.args)]

    def _look_at(self, executed: Executed, key: bytes) -> str | None:
        node = executed.node
        before = self._holders.get((node, key))
        holder = self._holders[node, key] = self._holder(node, key)
        if executed.script in _HANDING:
            new = holder != before or (executed.reply == _NEW and not self._stays(executed))
        else:
            new = executed.reply == _NEW and asked_ticket(executed.script, executed.keys, executed.args) is not None
        return self._judge(node, key, holder) if new and holder is not None else None

    @staticmethod
    def _stays(executed: Executed) -> bool:
        """Return whether the command released one acquisition of several."""
        return executed.script == "lock_release" and executed.args[1] != 0

    def _holder(self, node: int, key: bytes) -> bytes | None:
        return next(iter(kept_at(self.sim.nodes[node], key, Hash)), None)

    def _has_kept(self, node: int, key: bytes, owner: bytes, first: Place) -> bool:
        """Return whether an owner comes first whose place the node kept although it was free to drop it."""
        ticket = self._queues.ticket(node, key, owner)
        return ticket is not None and (ticket, owner) < first.rank

    def _judge(self, node: int, key: bytes, claim: bytes) -> str | None:
        owner = owner_in(claim)
        places = self._queues.places(node, key)
        # An owner that asks without a ticket may still have a place from an earlier, cancelled attempt.
        ours = [place for place in places if place.owner == owner]
        first = min(places, key=lambda place: place.rank, default=None)
        if first is None or first in ours or (not ours and self._has_kept(node, key, owner, first)):
            return None
        ticket = f"with ticket {ours[0].ticket}" if ours else "without a ticket"
        return (
            f"{self.sim.nodes[node].name} granted {describe(key, claim)} {ticket}, "
            f"when it was the turn of {first.owner.decode()} with ticket {first.ticket}"
        )
