"""Which slots a permit asks for next, and which a round has won for it; see `slot_claims`.

* *The first round of a try* names a random slot to start from; each node grants the first free ones from there on.
* *If nodes chose differently*, the permit asks for the slots that most nodes have granted or may still have free. A
  node that took the first free slots has shown that all slots it skipped are taken.
* *After a shrink*, nodes also tell which slots are taken, and the permit leaves reserved slots out, see `shrinking`.
* *A rate limiter's* slots run out, on each node at another instant. When few are free, nodes choose different ones, and
  most guesses are wrong. So from the first such round on the client asks which are taken, until one round is enough.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice

from redsync._core.effects import Arg
from redsync._core.limits import Limit
from redsync._core.quorum import Tally, Votes
from redsync._protocols.answers import TAKEN
from redsync._protocols.rounds import told
from redsync._protocols.shrinking import Taken

__all__ = ["SlotSearch"]

_ROUNDS = 4
"""Rounds in which one try may look for slots that a quorum of nodes has free, before a rollback and a new try."""

_SPARE = 4
"""Spare candidates to take from each bit map: slots that are free on one node may be taken on others."""


class SlotSearch:
    """What one permit has found out in one try.

    Attributes:
        version: The limit's version in the latest ask; `permits`: the limit itself.
        tells: Whether that ask wants nodes to tell which slots are taken.
    """

    def __init__(self, wanted: int, limit: Limit, random: Callable[[], float]) -> None:
        self._wanted = wanted
        self._limit = limit
        self._random = random
        self.version, self.permits, self.tells = limit.version, limit.permits, False
        self.begin()

    def begin(self) -> None:
        """Begin another try, which knows nothing of free slots."""
        self._rounds = 0
        self._start = int(self._random() * self._limit.permits)
        self._exact: tuple[int, ...] = ()
        # By node, the slots that it granted first: they show how far it had to go, and the slots it skipped are taken.
        self._first: dict[int, tuple[int, ...]] = {}

    def ask(self) -> tuple[Arg, ...]:
        """Return the further arguments of the next round."""
        self._rounds += 1
        limit = self._limit
        self.version, self.permits, self.tells = limit.version, limit.permits, limit.lowered or limit.scarce
        exact = b",".join(b"%d" % slot for slot in self._exact)
        return limit.version, limit.permits, self._start, exact, int(self.tells), *limit.window

    # What a round has won.

    def votes(self, tally: Votes) -> Counter[int]:
        """Return how many nodes have granted each slot, without reserved slots."""
        votes = Counter(slot for grant in tally.grants for slot in grant.slots)
        if self.tells:
            for slot in self._taken(tally, votes).reserved(self.permits):
                votes.pop(slot, None)
        return votes

    def agreed(self, tally: Votes) -> tuple[int, ...]:
        """Return the slots that all nodes granted that granted any, as is usual; empty if that does not decide."""
        slots = {grant.slots for grant in tally.grants}
        return slots.pop() if len(slots) == 1 and not self.tells else ()

    def won(self, tally: Tally) -> tuple[int, ...]:
        """Return the slots that most nodes have granted."""
        all_votes = tally.all_votes
        if agreed := self.agreed(all_votes):
            return agreed if len(agreed) == 1 else tuple(sorted(agreed, key=self._distance))
        votes = self.votes(all_votes)
        return tuple(sorted(votes, key=lambda slot: (-votes[slot], self._distance(slot)))[: self._wanted])

    def note_won(self) -> None:
        """Record that a round has won the slots."""
        self._limit.scarce = self._limit.scarce and self._rounds > 1

    def is_within(self, tally: Tally) -> bool:
        """Whether nodes were asked which slots are taken, and told none beyond the limit."""
        return self.tells and not self._taken(tally.all_votes, Counter()).beyond(self.permits)

    @staticmethod
    def _taken(tally: Votes, votes: Counter[int]) -> Taken:
        """Return the slots that others have, as far as the granting nodes know."""
        own = {slot for slot, count in votes.items() if count >= tally.quorum}
        return Taken(((grant.taken, grant.slots) for grant in tally.grants), own)

    # What to ask for next.

    def exchange(self, tally: Tally, *, newer: bool) -> bool:
        """Choose other slots after a round that was not won; return whether there are any to ask for at once.

        Args:
            tally: The round.
            newer: Whether the limit has changed since: slots chosen under the older limit may be beyond the new one.
        """
        if self._limit.per_us and tally.granted:
            self._limit.scarce = True
        if self._rounds >= _ROUNDS:
            return False
        self._exact = () if newer else self.choose(tally)
        self._start %= self._limit.permits
        return newer or bool(self._exact)

    def insist(self, tally: Tally) -> bool:
        """Choose the slots that were won already; return whether the permit may ask for them once more."""
        if self._rounds >= _ROUNDS:
            return False
        self._exact = self.won(tally)
        return True

    def widen(self) -> None:
        """Ask for any slots again: the next round takes a place in the line as well."""
        self._exact, self._rounds = (), 0

    def choose(self, tally: Tally) -> tuple[int, ...]:
        """Return the slots that most nodes may grant; empty if a quorum may grant too few."""
        chances: list[Callable[[int], float]] = []
        candidates: set[int] = set()
        reserved: frozenset[int] = frozenset()
        if self.tells:
            # All exact slots that are free may be reserved: so look for others too.
            taken = self._taken(tally, Counter())
            reserved = taken.reserved(self._limit.permits)
            candidates.update(self._free_in(taken, reserved))
        for node, answer in enumerate(tally.answers):
            if answer:
                candidates.update(answer.slots)
                first = self._first.setdefault(node, () if self._exact else answer.slots)
                known = partial(_chance_in, Taken([(answer.taken, answer.slots)])) if self.tells else None
                chances.append(known or partial(self._chance, answer.slots, first))
        for refusal in told(tally):
            if refusal.reason == TAKEN:
                taken = Taken([(refusal.taken, ())])
                candidates.update(self._free_in(taken, reserved))
                chances.append(partial(_chance_in, taken))
        scores = {slot: [chance(slot) for chance in chances] for slot in candidates - reserved}
        # A node that names a slot beyond the limit is broken: others would make room for all bits up to that one.
        below = self._limit.permits
        possible = [slot for slot, each in scores.items() if slot < below and sum(map(bool, each)) >= tally.quorum]
        if len(possible) < self._wanted:
            return ()
        possible.sort(key=lambda slot: (-sum(scores[slot]), self._distance(slot)))
        return tuple(possible[: self._wanted])

    def _chance(self, has: tuple[int, ...], first: tuple[int, ...], slot: int) -> float:
        """Return how likely a node grants `slot`; `has`: the slots granted now, `first`: those granted first."""
        if slot in has:
            return 1.0
        passed = max(map(self._distance, first), default=-1)
        return 0.5 if slot in first or self._distance(slot) > passed else 0.0

    def _free_in(self, taken: Taken, reserved: frozenset[int]) -> Iterable[int]:
        permits = self._limit.permits
        cycle = ((self._start + i) % permits for i in range(permits))
        return islice((slot for slot in cycle if slot not in taken and slot not in reserved), self._wanted + _SPARE)

    def _distance(self, slot: int) -> int:
        return (slot - self._start) % self._limit.permits


def _chance_in(taken: Taken, slot: int) -> float:
    return 0.0 if slot in taken else 1.0
