"""Places: how those who are refused wait for their turn. It alone tells plain, fair and spin locks apart.

* *By arrival* (plain): a release wakes who has waited longest, and takes its place away; newcomers may barge.
* *By ticket* (fair): first come, first served. A waiter reads the highest ticket of a quorum of nodes, takes the next
  one, and writes that back. Two quorums meet, so who finished queueing before another began has the lower ticket on
  every node that knows both, whatever their clocks say; equal tickets are ordered by owner. Nodes grant to the head
  only, so they agree, and there is no split vote. (Lamport's bakery, with a quorum in the place of shared memory.)
* *None* (spin): nothing is left on the nodes by who does not hold; tries are spread by a back-off.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from redsync._core.ownership import Owner
from redsync._core.quorum import Tally
from redsync._protocols.lease import milliseconds
from redsync._protocols.rounds import most_refusals, refusals

__all__ = ["TICKET_KEPT", "Arrival", "Nowhere", "Place", "Ticket", "patience"]

ARRIVAL_KEPT = 5.0
"""Seconds for which a node keeps a waiter's place; each of its tries renews it."""

TICKET_KEPT = 3.0
"""Likewise for a ticket. Shorter, as one who stopped with it holds up everybody behind."""

_LONGEST_SLEEP = 0.7
"""Of the time for which a place is kept, so that it is renewed before it ends."""

_FRONT = 64
"""So many who wait may look every second. Who has more before it sleeps longer: thousands would keep nodes busy."""


def _is_held(tally: Tally) -> bool:
    """Whether one owner has so many nodes that the lock is held, and no vote is split."""
    return most_refusals(tally) >= tally.quorum


def _is_drawn(tally: Tally) -> bool:
    """Whether a ticket can be drawn: a quorum has told its highest. A foreign value tells of none."""
    return sum(map(bool, refusals(tally))) >= tally.quorum


class Place(Protocol):
    """One waiter's place in the queues of all nodes.

    Attributes:
        taken: Whether nodes may have it: then it is to be left, and they may send wake-ups.
        kept: Seconds for which they keep it.
        enough: Tells whether refusals that rule a quorum out say enough to go on; else all nodes are heard.
    """

    taken: bool
    kept: float

    @property
    def enough(self) -> Callable[[Tally], bool]: ...

    def ask(self, now: float) -> tuple[bytes | int, ...]:
        """Return the further arguments of the next try; none if it asks for no place."""
        ...

    def learn(self, tally: Tally) -> bool:
        """Take note of a refusal; return whether to ask again at once, for now there is more to ask for."""
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

    kept = ARRIVAL_KEPT
    enough = staticmethod(_is_held)

    def __init__(self, owner: Owner, started: float, *, at_once: bool) -> None:
        """Begin to wait; `at_once`: the first try asks for a place already, because others are expected."""
        self._owner = owner
        self._started = started
        self._asks = at_once
        self.taken = False

    def ask(self, now: float) -> tuple[bytes | int, ...]:
        if not self._asks:
            return ()
        self.taken = True
        return milliseconds(self.kept), milliseconds(now - self._started), self._owner.channel

    def learn(self, tally: Tally) -> bool:  # noqa: ARG002  (whoever refused: others are about)
        again, self._asks = not self._asks, True
        return again

    def pause(self, tries: int, luck: float) -> float | None:  # noqa: ARG002
        return None

    def patience(self, tally: Tally, luck: float) -> float:
        return patience(tally, luck, 2, self.kept)


class Ticket:
    """A place by ticket; see `Place`."""

    kept = TICKET_KEPT

    def __init__(self, owner: Owner, *, waits: bool) -> None:
        self._owner = owner
        self._waits = waits
        self._ticket = 0
        self.taken = False

    @property
    def enough(self) -> Callable[[Tally], bool]:
        # With an even number of nodes fewer refusals than a quorum rule a grant out.
        return _is_held if self._ticket or not self._waits else _is_drawn

    def ask(self, now: float) -> tuple[bytes | int, ...]:  # noqa: ARG002
        self.taken = self.taken or self._ticket > 0
        return milliseconds(self.kept) if self._waits else 0, self._ticket, self._owner.channel

    def learn(self, tally: Tally) -> bool:
        highest = [reply[2] for reply in refusals(tally) if reply]
        if self._ticket or not self._waits or len(highest) < tally.quorum:
            return False
        self._ticket = max(highest) + 1
        return True

    def pause(self, tries: int, luck: float) -> float | None:  # noqa: ARG002
        return None

    def patience(self, tally: Tally, luck: float) -> float:
        return patience(tally, luck, 3, self.kept)


class Nowhere:
    """No place; see `Place`."""

    kept = 0.0
    taken = False
    enough = staticmethod(_is_held)

    def __init__(self, backoff: Callable[[int, float], float]) -> None:
        """Wait without a place; `backoff(tries, luck)` says for how many seconds to sleep after so many tries."""
        self._backoff = backoff

    def ask(self, now: float) -> tuple[bytes | int, ...]:  # noqa: ARG002
        return ()

    def learn(self, tally: Tally) -> bool:  # noqa: ARG002
        return False

    def pause(self, tries: int, luck: float) -> float | None:
        return self._backoff(tries, luck)

    def patience(self, tally: Tally, luck: float) -> float:  # noqa: ARG002
        return 0.0
