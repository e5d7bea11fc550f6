"""Places: how those who are refused wait for their turn. It alone tells plain, fair and spin locks apart.

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
By arrival it leaves at once, and comes back with the time that it has waited. By ticket (permits too, see `bids`) it
stops renewing its place until a quorum answers, and then presents the same ticket again. So a short outage costs no
turn, and it holds up others for no longer than a waiter that has stopped. An old ticket breaks no promise: its owner
asked before all who have come since. To leave at once would cost the turn in each outage of a moment.

A place is kept for `PLACE_KEPT`, or for the lease that its owner asks for, if that is shorter: a waiter that is gone
costs others no more than a holder that is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol

from redsync._core.effects import Arg
from redsync._core.ownership import Owner
from redsync._core.quorum import Tally
from redsync._protocols.lease import milliseconds
from redsync._protocols.rounds import most_refusals, refusals

__all__ = ["PLACE_KEPT", "SPREAD", "Arrival", "Nowhere", "Place", "Ticket", "Waiting", "highest_ticket", "patience"]

PLACE_KEPT = 3.0
"""Seconds for which nodes keep a place at most; each ask renews it. One who stopped holds up others for that long."""

_LONGEST_SLEEP = 0.7
"""Of the time for which a place is kept, so that it is renewed before it ends."""

_DRAW = b"+"
"""In the place of a ticket: each node draws one by itself."""

_LEAP = 1 << 40
"""Tickets by which one node can be ahead of all others: those that were drawn while a queue never was empty."""

SPREAD = 0.02
"""Seconds over which those who wait for one holder spread their looks when its time is up."""

_FRONT = 64
"""So many who wait may look every second. Who has more before it sleeps longer: thousands would keep nodes busy."""


def _is_held(tally: Tally) -> bool:
    """Whether one owner has so many nodes that the lock is held, and no vote is split."""
    return most_refusals(tally) >= tally.quorum


def _is_drawn(tally: Tally) -> bool:
    """Whether a ticket can be drawn: a quorum has told its highest. A foreign value tells of none."""
    return sum(map(bool, refusals(tally))) >= tally.quorum


def _is_heard(tally: Tally) -> bool:
    """Whether each node has told that it did not grant."""
    return tally.refused == len(tally.nodes)


def highest_ticket(told: Iterable[int]) -> int:
    """Return the highest of the tickets that nodes told, but for any of absurd size.

    Whoever draws the next ticket writes it to all nodes. So one broken node would spread its number, and beyond 2^53
    nodes can't tell tickets apart any more.
    """
    highest = 0
    for ticket in sorted(told):
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
    """

    owner: Owner
    waits: bool
    at_once: bool
    marks: Iterator[int] | None
    kept: float = PLACE_KEPT


class Place(Protocol):
    """One waiter's place in the queues of all nodes.

    Attributes:
        taken: Whether nodes may have it: then it is to be left, and they may send wake-ups.
        kept: Seconds for which they keep it.
        mark: What nodes say when they hand the claim over after the latest ask; None if they must not.
        enough: Tells whether refusals that rule a quorum out say enough to go on; else all nodes are heard.
    """

    taken: bool
    kept: float
    mark: bytes | None

    @property
    def enough(self) -> Callable[[Tally], bool]: ...

    def ask(self, now: float) -> tuple[Arg, ...]:
        """Return the further arguments of the next try; none if it asks for no place."""
        ...

    def learn(self, tally: Tally) -> bool:
        """Take note of a refusal by a quorum; return whether to ask again at once, for now there is more to ask for."""
        ...

    def suspend(self) -> bool:
        """Ask for no position, nor renew one, until the next `learn`: too few nodes answer. Return whether to leave."""
        ...

    @property
    def unsettled(self) -> bool:
        """Whether it is in doubt which place it is: then it is to be left, and another one taken."""
        ...

    def leave(self) -> None:
        """Take note that the nodes have been told to forget it."""
        ...

    def pause(self, tries: int, luck: float) -> float | None:
        """Return for how many seconds to sleep whatever was heard; None: until woken, or the holder's time is up."""
        ...

    def patience(self, tally: Tally, luck: float) -> float:
        """Return for how many seconds to wait for a wake-up before looking again."""
        ...


def patience(tally: Tally, luck: float, told_at: int, kept: float) -> float:
    """Return 0.5 to 1.5 s, or longer for who is far behind; `told_at`: where a refusal tells how many are before it."""
    ahead = min((reply[told_at] for reply in refusals(tally) if reply and len(reply) > told_at), default=0)
    return min((0.5 + luck) * (1 + ahead / _FRONT), _LONGEST_SLEEP * kept)


class Arrival:
    """A place by arrival; see `Place`."""

    def __init__(self, demand: Waiting, started: float) -> None:
        self._owner = demand.owner
        self._marks = demand.marks
        self.kept = demand.kept
        self.mark: bytes | None = None
        self._started = started
        self._asks = demand.at_once
        self.taken = False

    def begin(self, now: float) -> None:
        """Begin to wait on the nodes only now; the first try asks for a place already."""
        self._asks, self._started = True, now

    def ask(self, now: float) -> tuple[Arg, ...]:
        if not self._asks:
            self.mark = None
            return ()
        self.taken = True
        self.mark = b"%d" % next(self._marks) if self._marks is not None else None
        return milliseconds(self.kept), milliseconds(now - self._started), self._owner.channel, self.mark or b"0"

    @property
    def enough(self) -> Callable[[Tally], bool]:
        return _is_heard if self.taken else _is_held

    def learn(self, tally: Tally) -> bool:  # noqa: ARG002  (whoever refused: others are about)
        again, self._asks = not self._asks, True
        return again

    def suspend(self) -> bool:
        self._asks = False
        return True

    unsettled = False

    def leave(self) -> None:
        self.taken = False

    def pause(self, tries: int, luck: float) -> float | None:  # noqa: ARG002
        return None

    def patience(self, tally: Tally, luck: float) -> float:
        return patience(tally, luck, 2, self.kept)


class Ticket:
    """A place by ticket; see `Place`."""

    def __init__(self, demand: Waiting) -> None:
        self._owner = demand.owner
        self._marks = demand.marks
        self._waits = demand.waits
        self.kept = demand.kept
        self._ticket: int | bytes = _DRAW if demand.at_once else 0
        self._suspended = False
        self.taken = False
        self.mark: bytes | None = None

    @property
    def enough(self) -> Callable[[Tally], bool]:
        # With an even number of nodes fewer refusals than a quorum rule a grant out.
        if not self._waits:
            return _is_held
        # A node that is not heard may have granted, and that would have to be undone. Nobody is in a hurry here.
        return _is_heard if self._ticket else _is_drawn

    def ask(self, now: float) -> tuple[Arg, ...]:  # noqa: ARG002
        ticket = 0 if self._suspended else self._ticket
        self.taken = self.taken or ticket != 0
        self.mark = b"%d" % next(self._marks) if ticket and self._marks is not None else None
        kept = milliseconds(self.kept) if self._waits else 0
        return kept, ticket, self._owner.channel, self.mark or b"0"

    def learn(self, tally: Tally) -> bool:
        if self._suspended:
            self._suspended = False
            if self._ticket:
                return True
        told = [reply[2] for reply in refusals(tally) if reply]
        if self._ticket not in (0, _DRAW) or not self._waits or len(told) < tally.quorum:
            return False
        highest = highest_ticket(told)
        if self._ticket == _DRAW:
            self._ticket = highest
            # A quorum that drew the same knows it already.
            return told.count(highest) < tally.quorum
        self._ticket = highest + 1
        return True

    def suspend(self) -> bool:
        self._suspended = True
        return False

    @property
    def unsettled(self) -> bool:
        # Nodes where it is the head granted, and did not tell what they drew. Others may have drawn more. So they
        # would go on to name different heads, for as long as these places are kept.
        return self._ticket == _DRAW

    def leave(self) -> None:
        self._ticket, self.taken = 0, False

    def pause(self, tries: int, luck: float) -> float | None:  # noqa: ARG002
        return None

    def patience(self, tally: Tally, luck: float) -> float:
        return patience(tally, luck, 3, self.kept)


class Nowhere:
    """No place; see `Place`."""

    kept = 0.0
    mark: bytes | None = None
    taken = False
    enough = staticmethod(_is_held)

    def __init__(self, backoff: Callable[[int, float], float]) -> None:
        """Wait without a place; `backoff(tries, luck)` says for how many seconds to sleep after so many tries."""
        self._backoff = backoff

    def ask(self, now: float) -> tuple[Arg, ...]:  # noqa: ARG002
        return ()

    def learn(self, tally: Tally) -> bool:  # noqa: ARG002
        return False

    def suspend(self) -> bool:
        return False

    unsettled = False

    def leave(self) -> None:
        """There is none."""

    def pause(self, tries: int, luck: float) -> float | None:
        return self._backoff(tries, luck)

    def patience(self, tally: Tally, luck: float) -> float:  # noqa: ARG002
        return 0.0
