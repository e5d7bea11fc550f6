"""The owners that must be in the queues of fair locks, judged by executed commands. For several checkers.

A node that executes an acquire request with a ticket has to keep the owner's *place*, whatever it answers, until

* the owner leaves (it releases its last hold, or gives up),
* the owner was silent for the time that it had asked its place to be kept, by the node's clock, whichever way that
  jumps: a clock that jumps ahead ends places, one that jumps back lengthens them,
* a release, or an owner that gives up, finds the place while no connection of its client is subscribed at the node,
* the node loses its memory, or the lock is taken from the owner by force,
* the node refuses to write while the attempt is rolled back.

A renewed place stays the same object. One with another ticket is another place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import hiredis

from redsync.testing.simulator.checks.kept import kept_at
from redsync.testing.simulator.happenings import Executed, Faulted
from redsync.testing.simulator.values import SortedSet

if TYPE_CHECKING:
    from redsync.testing.simulator.simulation import Simulation

__all__ = ["DRAWN", "Place", "Queues", "asked_ticket"]

_ACQUIRE, _RELEASE, _ABANDON, _FORCE = (
    "fair_lock_acquire",
    "lock_release",
    "lock_abandon",
    "lock_force_release",
)
_FOREIGN = 0

DRAWN: Final = b"+"
"""Stands for a ticket that the node must draw."""


def asked_ticket(script: str, keys: Sequence[bytes], args: Sequence[Any]) -> int | bytes | None:
    """Return the ticket with which a command asks for a fair lock; None if it does not ask.

    It is 0 for a request that asks for no place yet, "+" for a ticket that the node draws.
    """
    return args[5] if script == _ACQUIRE and len(keys) > 1 else None


def _parts(claim: Any) -> tuple[bytes, int]:
    owner, _, number = claim.rpartition(b":")
    return owner, int(number)


class Place:
    """One owner's place in the queue of one node.

    Attributes:
        node: The node's index.
        owner: The owner, as queues name it.
        ticket: Its ticket.
        channel: The channel of its client's wake-ups.
        number: The number of the claim that last took or renewed it.
        until_ms: Its end by the node's clock, unless it is renewed.
        over: True once it has ended.
    """

    def __init__(self, node: int, owner: bytes, ticket: int, channel: bytes) -> None:
        self.node: Final = node
        self.owner: Final = owner
        self.ticket: Final = ticket
        self.channel: Final = channel
        self.number = 0
        self.until_ms = 0
        self.over = False

    @property
    def rank(self) -> tuple[int, bytes]:
        """The order of waiters: by ticket, and by name where tickets are equal."""
        return self.ticket, self.owner


class Queues:
    """The places that nodes must keep at this instant; it must get every `Executed` and `Faulted`, in order."""

    def __init__(self, sim: Simulation) -> None:
        self._sim: Final = sim
        self._places: Final[dict[tuple[int, bytes], dict[bytes, Place]]] = {}
        self._names: Final[dict[bytes, bytes]] = {}

    def places(self, node: int, key: bytes) -> list[Place]:
        """Return the places that a node must keep for a lock, without those that end at this very instant."""
        kept = self._places.get((node, key), {})
        now_ms = math.floor(self._sim.nodes[node].clock.now() * 1000) + 1
        for place in [place for place in kept.values() if place.until_ms <= now_ms]:
            self._end(kept, place)
        return list(kept.values())

    def by_owner(self, key: bytes) -> dict[bytes, list[Place]]:
        """Return the places at all nodes for a lock."""
        found: dict[bytes, list[Place]] = {}
        for node in range(len(self._sim.nodes)):
            for place in self.places(node, key):
                found.setdefault(place.owner, []).append(place)
        return found

    def ticket(self, node: int, key: bytes, owner: bytes) -> int | None:
        """Return the ticket that a node keeps for an owner, even if it no longer must; None if it keeps none."""
        known = key in self._names
        score = kept_at(self._sim.nodes[node], self._names[key], SortedSet).get(owner) if known else None
        return None if score is None else int(score)

    def note(self, executed: Executed) -> None:
        """Record what a node has executed."""
        node, script, keys, args = executed.node, executed.script, executed.keys, executed.args
        ticket = asked_ticket(script, keys, args)
        if ticket is None and script not in (_RELEASE, _ABANDON, _FORCE):
            return
        if isinstance(executed.reply, hiredis.ReplyError) and not str(executed.reply).startswith("FORGETFUL"):
            # It was not executed. But a node that answers FORGETFUL has still taken the place.
            return
        self.places(node, keys[0])
        if ticket is not None or script in (_RELEASE, _ABANDON):
            self._names[keys[0]] = keys[1]
        kept = self._places.setdefault((node, keys[0]), {})
        if ticket and args[4] and executed.reply != _FOREIGN:
            self._keep(kept, executed)
        if script == _FORCE:
            for place in list(kept.values()):
                if place.owner == _parts(args[0])[0]:
                    self._end(kept, place)
        elif script in (_RELEASE, _ABANDON):
            leaves, (owner, number) = args[1] == (0 if script == _RELEASE else 1), _parts(args[0])
            for place in list(kept.values()):
                left = place.owner == owner and place.number <= number and (leaves or self._is_unwritten(executed))
                if left or not self._sim.nodes[node].listeners(place.channel):
                    self._end(kept, place)

    def _is_unwritten(self, executed: Executed) -> bool:
        """Return whether a rollback ended a place because the node, which refuses to write, could not change it."""
        script, node = executed.script, self._sim.nodes[executed.node]
        return script == _ABANDON and node.store.refusal is not None

    def _keep(self, kept: dict[bytes, Place], executed: Executed) -> None:
        node = executed.node
        args: tuple[Any, ...] = executed.args
        (owner, number), (keep_ms, ticket, channel, _mark) = _parts(args[0]), args[4:]
        if owner in kept and kept[owner].number > number:
            # A late command of an earlier attempt.
            return
        if ticket == DRAWN:
            # The node may draw any ticket, as long as it keeps that one.
            ticket = self.ticket(node, executed.keys[0], owner) or 0
        place = kept.get(owner)
        if place is None or place.ticket != ticket:
            if place is not None:
                self._end(kept, place)
            place = kept[owner] = Place(node, owner, ticket, channel)
        place.number = number
        place.until_ms = math.floor(self._sim.nodes[node].clock.now() * 1000) + keep_ms

    def forget(self, faulted: Faulted) -> None:
        """Record nodes that lose their memory."""
        if faulted.loses_memory:
            name = faulted.who
            for (node, _), kept in self._places.items():
                if self._sim.nodes[node].name == name:
                    for place in list(kept.values()):
                        self._end(kept, place)

    @staticmethod
    def _end(kept: dict[bytes, Place], place: Place) -> None:
        place.over = True
        del kept[place.owner]
