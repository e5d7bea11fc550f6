"""Places: how those who are refused wait for their turn. It alone tells plain, fair and spin locks apart.

Those who wait for slots have a line of another kind, see `slot_lines`.

* *By arrival* (plain): who has waited longest comes first, by each node's own clock. Whoever asks while it is free gets
  it, but with the hand-over it is free only while nobody waits.
* *By ticket* (fair): first come, first served. A waiter reads the highest ticket of a quorum of nodes, takes the next
  one, and writes that back. Two quorums meet, so who finished queueing before another began has the lower ticket on
  every node that knows both, whatever their clocks say; equal tickets are ordered by owner. Nodes grant to the head
  only, so they agree, and there is no split vote. (Lamport's bakery, with a quorum in the place of shared memory.)
  Where others are expected each node draws a ticket by itself; the highest is written back unless a quorum drew that.
* *None* (spin): nothing is left on the nodes by who does not hold; tries are spread by a back-off.

**Without a quorum** a waiter can't get the lock, so it must not keep it from those who can: as the head of the queue of
one node it may deny everybody a quorum. Its order is its own, so it can come back to it without holding a place.
By arrival it leaves at once, and comes back with the time that it has waited. By ticket (permits too) it stops renewing
its place until a quorum answers, and then presents the same ticket again. So a short outage costs no turn, and it holds
up others for no longer than a waiter that has stopped. An old ticket breaks no promise: its owner asked before all who
have come since. To leave at once would cost the turn in each outage of a moment.

A place is kept for `PLACE_KEPT`, or for the lease that its owner asks for, if that is shorter: a waiter that is gone
costs others no more than a holder that is gone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from redsync._core.effects import Arg
from redsync._core.ownership import Owner
from redsync._core.quorum import Tally
from redsync._protocols.answers import read_by_arrival, read_by_ticket
from redsync._protocols.lease import milliseconds
from redsync._protocols.rounds import most_refusals, told

__all__ = ["PLACE_KEPT", "Arrival", "Nowhere", "Place", "Ticket", "Waiting", "highest_ticket", "usual_pause"]

PLACE_KEPT = 3.0
"""Seconds for which nodes keep a place at most; each ask renews it. One who stopped holds up others for that long."""

_LONGEST_SLEEP = 0.7
"""Of the time for which a place is kept, so that it is renewed before it ends."""

_DRAW = b"+"
"""In the place of a ticket: each node draws one by itself."""

_LEAP = 1 << 40
"""Tickets by which one node can be ahead of all others: those that were drawn while a queue never was empty."""

_FRONT = 64
"""So many who wait may look every second. Who has more before it sleeps longer: thousands would keep nodes busy."""


def _is_held(tally: Tally) -> bool:
    """Whether one owner has so many nodes that the lock is held, and no vote is split."""
    return most_refusals(tally) >= tally.quorum


def _is_drawn(tally: Tally) -> bool:
    """Whether a ticket can be drawn: a quorum has told its highest. A foreign value tells of none."""
    return len(told(tally)) >= tally.quorum


def _is_heard(tally: Tally) -> bool:
    """Whether each node has told that it did not grant."""
    return tally.refused == len(tally.nodes)


def highest_ticket(tickets: Iterable[int]) -> int:
    """Return the highest of the tickets that nodes told, but for any of absurd size.

    Whoever draws the next ticket writes it to all nodes. So one broken node would spread its number, and beyond 2^53
    nodes can't tell tickets apart any more.
    """
    highest = 0
    for ticket in sorted(tickets):
        if ticket > highest + _LEAP:
            break
        highest = max(highest, ticket)
    return highest


class Waiting(NamedTuple):
    """How one means to wait.

    Attributes:
        owner: Who.
        waits: Whether at all: whoever only tries takes no place.
        at_once: The first try asks for a place already, because others are expected.
        marks: Numbers the asks after which the claim may be handed over; None if it must not.
        kept: For how many seconds the nodes shall keep the place.
        started: The instant from which it counts.
    """

    owner: Owner
    waits: bool
    at_once: bool
    marks: Iterator[int] | None
    kept: float
    started: float


class Place(ABC):
    """One waiter's place in the queues of all nodes.

    Attributes:
        read: Reads a reply to an acquire with such a place.
        lines_up: Whether it may be taken later: then one that is far behind can wait inside the process meanwhile.
        taken: Whether nodes may have it: then it is to be left, and they may send wake-ups.
        kept: Seconds for which they keep it.
        mark: What nodes say when they hand the claim over after the latest ask; None if they must not.
        unsettled: Whether it is in doubt which place it is: then it is to be left, and another one taken.
    """

    read: Callable[[Any], object] = staticmethod(read_by_arrival)
    lines_up = False
    mark: bytes | None = None

    def __init__(self, waiting: Waiting) -> None:
        self._owner = waiting.owner
        self._marks = waiting.marks
        self._waits = waiting.waits
        self.kept = waiting.kept
        self.taken = False

    @property
    def unsettled(self) -> bool:
        return False

    @abstractmethod
    def enough(self, tally: Tally) -> bool:
        """Whether refusals that rule a quorum out say enough to go on; else all nodes are heard."""

    @abstractmethod
    def ask(self, now: float) -> tuple[Arg, ...]:
        """Return the further arguments of the next try; none if it asks for no place."""

    @abstractmethod
    def learn(self, tally: Tally) -> bool:
        """Take note of a refusal by a quorum; return whether to ask again at once, for now there is more to ask for."""

    def begin(self, now: float) -> None:  # noqa: B027  (a place that can't be taken later has nothing to do)
        """Begin to wait on the nodes only now; the first try asks for a place already."""

    def suspend(self) -> bool:
        """Ask for no position, nor renew one, until the next `learn`: too few nodes answer. Return whether to leave."""
        return False

    @abstractmethod
    def leave(self) -> None:
        """Take note that the nodes have been told to forget it."""

    def pause(self, tries: int, random: float, usual: Callable[[], float]) -> float:  # noqa: ARG002
        """Return for how many seconds to sleep; `usual`: returns when the holder's time is up, or a look is due."""
        return usual()

    @abstractmethod
    def longest_pause(self, tally: Tally, random: float) -> float:
        """Return for how many seconds to wait for a wake-up before looking again."""

    def _mark(self) -> bytes | None:
        return None if self._marks is None else b"%d" % next(self._marks)


def usual_pause(tally: Tally, random: float, kept: float) -> float:
    """Return 0.5 to 1.5 s, or longer for who is far behind."""
    ahead = min((refusal.ahead for refusal in told(tally) if refusal.ahead >= 0), default=0)
    return min((0.5 + random) * (1 + ahead / _FRONT), _LONGEST_SLEEP * kept)


class Arrival(Place):
    """A place by arrival."""

    lines_up = True

    def __init__(self, waiting: Waiting) -> None:
        super().__init__(waiting)
        self._started = waiting.started
        self._asks = waiting.at_once

    def begin(self, now: float) -> None:
        self._asks, self._started = True, now

    def ask(self, now: float) -> tuple[Arg, ...]:
        if not self._asks:
            self.mark = None
            return ()
        self.taken = True
        self.mark = self._mark()
        return milliseconds(self.kept), milliseconds(now - self._started), self._owner.channel, self.mark or b"0"

    def enough(self, tally: Tally) -> bool:
        return _is_heard(tally) if self.taken else _is_held(tally)

    def learn(self, tally: Tally) -> bool:  # noqa: ARG002  (whoever refused: others are about)
        again, self._asks = not self._asks, True
        return again

    def suspend(self) -> bool:
        self._asks = False
        return True

    def leave(self) -> None:
        self.taken = False

    def longest_pause(self, tally: Tally, random: float) -> float:
        return usual_pause(tally, random, self.kept)


class Ticket(Place):
    """A place by ticket."""

    read = staticmethod(read_by_ticket)

    def __init__(self, waiting: Waiting) -> None:
        super().__init__(waiting)
        self._ticket: int | bytes = _DRAW if waiting.at_once else 0
        self._suspended = False

    @property
    def unsettled(self) -> bool:
        # Nodes where it is the head granted, and did not tell what they drew. Others may have drawn more. So they
        # would go on to name different heads, for as long as these places are kept.
        return self._ticket == _DRAW

    def enough(self, tally: Tally) -> bool:
        # With an even number of nodes fewer refusals than a quorum rule a grant out.
        if not self._waits:
            return _is_held(tally)
        # A node that is not heard may have granted, and that would have to be undone. Nobody is in a hurry here.
        return _is_heard(tally) if self._ticket else _is_drawn(tally)

    def ask(self, now: float) -> tuple[Arg, ...]:  # noqa: ARG002
        ticket = 0 if self._suspended else self._ticket
        self.taken = self.taken or ticket != 0
        self.mark = self._mark() if ticket else None
        kept = milliseconds(self.kept) if self._waits else 0
        return kept, ticket, self._owner.channel, self.mark or b"0"

    def learn(self, tally: Tally) -> bool:
        if self._suspended:
            self._suspended = False
            if self._ticket:
                return True
        tickets = [refusal.ticket for refusal in told(tally)]
        if self._ticket not in (0, _DRAW) or not self._waits or len(tickets) < tally.quorum:
            return False
        highest = highest_ticket(tickets)
        if self._ticket == _DRAW:
            self._ticket = highest
            # A quorum that drew the same knows it already.
            return tickets.count(highest) < tally.quorum
        self._ticket = highest + 1
        return True

    def suspend(self) -> bool:
        self._suspended = True
        return False

    def leave(self) -> None:
        self._ticket, self.taken = 0, False

    def longest_pause(self, tally: Tally, random: float) -> float:
        return usual_pause(tally, random, self.kept)


class Nowhere(Place):
    """No place: nothing is left on the nodes."""

    def __init__(self, backoff: Callable[[int, float], float], waiting: Waiting) -> None:
        """Wait without a place; `backoff(tries, random)` says for how many seconds to sleep after so many tries."""
        super().__init__(waiting)
        self._backoff = backoff

    def enough(self, tally: Tally) -> bool:
        return _is_held(tally)

    def ask(self, now: float) -> tuple[Arg, ...]:  # noqa: ARG002
        return ()

    def learn(self, tally: Tally) -> bool:  # noqa: ARG002
        return False

    def leave(self) -> None:
        """There is none."""

    def pause(self, tries: int, random: float, usual: Callable[[], float]) -> float:  # noqa: ARG002
        return self._backoff(tries, random)

    def longest_pause(self, tally: Tally, random: float) -> float:  # noqa: ARG002
        return 0.0
