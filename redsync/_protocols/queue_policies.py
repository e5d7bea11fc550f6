"""Queue policies: how refused acquires wait for their turn. Plain, fair and spin locks differ in nothing else.

Acquires that wait for slots have a queue of another kind, see `slot_claims`.

* *By arrival* (plain): the waiter that has waited longest comes first, by each node's own clock. Any acquire that asks
  while the lock is free gets it. But releases hand the lock over, so it is free only while no waiter is queued.
* *By ticket* (fair): first come, first served. A waiter reads the highest ticket of a quorum of nodes, takes the next
  one, and writes that back. Two quorums meet, so a waiter that finished queueing before another began has the lower
  ticket on every node that knows both, whatever their clocks say; owners order equal tickets. Nodes grant to the head
  only, so they agree, and there is no split vote. (Lamport's bakery, with a quorum instead of shared memory.)
* *None* (spin): a waiter leaves nothing on the nodes; a back-off spreads its tries.

**Without a quorum** a waiter can't get the lock, so it must not keep it from others: as the head of one node's queue it
may deny all others a quorum. The waiter knows its own order, so it can give up its place and return to the same order.
By arrival it leaves at once, and comes back with the time that it has waited. By ticket (permits too) it stops renewing
its place until a quorum answers, and then presents the same ticket again. So a short outage costs no turn, and the
waiter holds up others for no longer than one that has stopped. An old ticket breaks no promise: its owner asked before
all later arrivals. Leaving at once would cost the turn in each momentary outage.

Nodes keep a place for `PLACE_KEPT`, or for the lease that its owner asks for, if that is shorter: a waiter that is gone
costs others no more than a holder that is gone.

**Ask ids.** A node that frees the lock claims it for the head of its queue, and repeats the *ask id* of the head's
latest ask. It is a number. A waiter with its own lease sends `number+ms`: the node keeps the claim for that lease, and
repeats the number alone. Otherwise the node keeps the claim for the rest of the place's time, and the watchdog
lengthens it. An older release of redsync knows no leases and repeats the whole: so its hand-over only wakes that
waiter, which then asks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from redsync._core.holds import Owner
from redsync._core.quorum import Tally, Verdict, thoroughly
from redsync._core.scripts import Arg
from redsync._core.timing import milliseconds
from redsync._protocols.answers import most_refusals, refusals_of_owners

__all__ = [
    "PLACE_KEPT",
    "FifoByArrival",
    "FifoByNumber",
    "FifoByTicket",
    "NoQueue",
    "QueuePolicy",
    "highest_ticket",
    "is_held",
]

PLACE_KEPT = 3.0
"""Seconds for which nodes keep a place at most; each ask renews it. A waiter that stops holds up others that long."""

_LONGEST_SLEEP = 0.7
"""The longest sleep, as a part of the time for which nodes keep a place, so that an ask renews it before it ends."""

_LEAP = 1 << 40
"""How far one node's ticket can be ahead of all others: the tickets drawn while its queue was not empty."""

_FRONT = 64
"""Behind `n` others a waiter sleeps `1 + n / 64` times as long: thousands that look every second burden nodes."""


def is_held(tally: Tally) -> bool:
    """Return whether one owner has a quorum of nodes: the lock is held, the vote not split."""
    return most_refusals(tally) >= tally.quorum


def _is_heard(tally: Tally) -> bool:
    """Return whether each node has refused."""
    return tally.refused == len(tally.nodes)


def highest_ticket(tickets: Iterable[int]) -> int:
    """Return the highest of the tickets that nodes told, ignoring any of absurd size.

    The waiter that draws the next ticket writes it to all nodes. So the number of one broken node would spread, and
    beyond 2^53 nodes can no longer distinguish tickets.
    """
    highest = 0
    for ticket in sorted(tickets):
        if ticket > highest + _LEAP:
            break
        highest = max(highest, ticket)
    return highest


@dataclass(kw_only=True, eq=False)
class QueuePolicy(ABC):
    """How one waiter queues on all nodes, and which place it has there.

    Attributes:
        may_join_later: True if its place may be taken later: a waiter far behind can wait inside the process until
            then.
        taken: True if nodes may have the place: then the waiter must leave it, and nodes may send wake-ups.
        ask_id: The ask id that nodes repeat if they hand the claim over after the latest ask; None if they can't.
        owner: The waiting owner.
        waits: True if it waits at all: an acquire with one try takes no place.
        asks: True if the next try asks for a place by arrival; the first does if others most likely hold the lock.
        ask_ids: Numbers the asks after which nodes may hand the claim over.
        kept: Seconds for which nodes keep the place.
        lease: Seconds for which nodes keep a claim that they hand over; 0.0: as long as the place.
        started: The instant at which waiting began, which decides the place by arrival.
    """

    may_join_later = False
    taken = False
    ask_id = None

    owner: Owner
    waits: bool
    asks: bool
    ask_ids: Iterator[int]
    kept: float
    lease: float
    started: float

    @property
    def handed(self) -> float:
        """Seconds after an ask for which nodes at least keep a claim that they hand over after it."""
        return self.lease or self.kept

    def decide(self, tally: Tally) -> Verdict:
        """Return the verdict of an ask: the round hears all nodes if the refusals that lose it do not say enough."""
        verdict = thoroughly(tally)
        lost_too_soon = verdict is Verdict.LOST and None in tally.ballots and not self.enough(tally)
        return Verdict.PENDING if lost_too_soon else verdict

    def enough(self, tally: Tally) -> bool:
        """Return whether refusals that rule a quorum out say enough to decide."""
        return is_held(tally)

    @abstractmethod
    def ask(self, now: float) -> tuple[Arg, ...]:
        """Return the further arguments of the next try; empty if it asks for no place."""

    @abstractmethod
    def learn(self, tally: Tally) -> bool:
        """Record a refusal by a quorum; return whether to ask again at once, as there is now a place to ask for."""

    def suspend(self) -> bool:
        """Ask for no place and renew none until the next `learn`: too few nodes answer. Return whether to leave."""
        return not self.taken  # With no place to keep, its rollback hands over to the next waiter.

    def leave(self) -> None:
        """Record that the waiter has left its place on the nodes."""
        self.taken = False

    def pause(self, tries: int, random: float, usual: float) -> float:  # noqa: ARG002
        """Return for how many seconds to sleep; `usual`: seconds until the holder's time is up, or a look is due."""
        return usual

    def longest_pause(self, tally: Tally, random: float) -> float:
        """Return for how many seconds to wait for a wake-up before looking again.

        That is 0.5 to 1.5 s: more for a waiter far behind, but less than the time for which nodes keep the place.
        """
        # By the node that tells the fewest.
        ahead = min((refusal.ahead for refusal in refusals_of_owners(tally) if refusal.ahead >= 0), default=0)
        return min((0.5 + random) * (1 + ahead / _FRONT), _LONGEST_SLEEP * self.kept)

    def _next_ask_id(self) -> bytes:
        """Number the ask, and return the ask id that nodes keep for it."""
        self.ask_id = b"%d" % next(self.ask_ids)
        return b"%b+%d" % (self.ask_id, milliseconds(self.lease)) if self.lease else self.ask_id


class FifoByArrival(QueuePolicy):
    """First come, first served, by the order of arrival."""

    may_join_later = True

    def ask(self, now: float) -> tuple[Arg, ...]:
        if not self.asks:
            self.ask_id = None
            return ()
        self.taken = True
        return milliseconds(self.kept), milliseconds(now - self.started), self.owner.channel, self._next_ask_id()

    def enough(self, tally: Tally) -> bool:
        return _is_heard(tally) if self.taken else is_held(tally)

    def learn(self, tally: Tally) -> bool:  # noqa: ARG002  (any refusal shows that others are about)
        again, self.asks = not self.asks, True
        return again

    def suspend(self) -> bool:
        self.asks = False
        return True


class FifoByNumber(QueuePolicy):
    """An order by a ticket that the waiter draws: a suspended waiter keeps its ticket, and presents it again."""

    _ticket = 0
    _suspended = False

    def suspend(self) -> bool:
        self._suspended = True
        return super().suspend()

    def learn(self, tally: Tally) -> bool:
        suspended, self._suspended = self._suspended, False
        if self._ticket:
            return suspended
        tickets = [refusal.ticket for refusal in refusals_of_owners(tally)]
        if not self.waits or len(tickets) < tally.quorum:
            return False
        self._ticket = highest_ticket(tickets) + 1
        return True


class FifoByTicket(FifoByNumber):
    """First come, first served, by tickets."""

    def enough(self, tally: Tally) -> bool:
        # With an even number of nodes, fewer refusals than a quorum rule a grant out.
        if not self.waits:
            return is_held(tally)
        # An unheard node may have granted, and then needs a rollback. A queued waiter can afford to hear all nodes.
        # To draw a ticket, a quorum must have told its highest one; nodes with a foreign value tell none.
        return _is_heard(tally) if self._ticket else len(refusals_of_owners(tally)) >= tally.quorum

    def ask(self, now: float) -> tuple[Arg, ...]:  # noqa: ARG002
        ticket = 0 if self._suspended else self._ticket
        self.taken = self.taken or ticket != 0
        self.ask_id = None
        ask_id = self._next_ask_id() if ticket else b"0"
        kept = milliseconds(self.kept) if self.waits else 0
        return kept, ticket, self.owner.channel, ask_id


class NoQueue(QueuePolicy):
    """No queue: the waiter leaves nothing on the nodes."""

    def __init__(self, backoff: Callable[[int, float], float], **waiting: Any) -> None:
        """Wait without a queue; `backoff(tries, random)` returns the seconds to sleep after that many tries."""
        super().__init__(**waiting)
        self._backoff = backoff

    def ask(self, now: float) -> tuple[Arg, ...]:  # noqa: ARG002
        return ()

    def learn(self, tally: Tally) -> bool:  # noqa: ARG002
        return False

    def pause(self, tries: int, random: float, usual: float) -> float:  # noqa: ARG002
        return self._backoff(tries, random)
