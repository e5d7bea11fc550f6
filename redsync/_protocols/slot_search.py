"""Which slots a permit asks for next, and which a round has won for it; see `slot_claims`.

* *The first round of a try* names a slot to start from, by chance; each node grants the first free ones from there on.
* *If nodes chose differently*, those slots are chosen that most nodes have granted or may still have free. A node that
  took the first free ones has shown that all it passed over are taken.
* *After a shrink*, nodes also tell what is taken, and slots that make up for others are left out, see `shrinking`.
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
"""Rounds in which one try may look for slots that a quorum of nodes has free, before it is undone and made anew."""

_SPARE = 4
"""Further candidates that are looked for in each bit map: slots of one node may be taken on others."""


class SlotSearch:
    """What one permit has found out in one try.

    Attributes:
        version: The limit's version in the latest ask; `permits`, likewise.
        tells: Whether they were asked to tell what is taken.
    """

    def __init__(self, wanted: int, limit: Limit, random: Callable[[], float]) -> None:
        self._wanted = wanted
        self._limit = limit
        self._random = random
        self.version, self.permits, self.tells = limit.version, limit.permits, False
        self.begin()

    def begin(self) -> None:
        """Begin another try: nothing is known of what nodes have free."""
        self._rounds = 0
        self._start = int(self._random() * self._limit.permits)
        self._exact: tuple[int, ...] = ()
        # By node, what it took at first, and how far it had to go for that: what it passed over is taken there.
        self._first: dict[int, tuple[int, ...]] = {}

    def ask(self) -> tuple[Arg, ...]:
        """Return what the next round asks for."""
        self._rounds += 1
        limit = self._limit
        self.version, self.permits, self.tells = limit.version, limit.permits, limit.lowered
        exact = b",".join(b"%d" % slot for slot in self._exact)
        return limit.version, limit.permits, self._start, exact, int(limit.lowered), *limit.window

    # What a round has won.

    def votes(self, tally: Votes) -> Counter[int]:
        """Return how many nodes have granted each slot, those left out that make up for slots beyond the limit."""
        votes = Counter(slot for grant in tally.grants for slot in grant.slots)
        if self.tells:
            for slot in self._taken(tally, votes).reserved(self.permits):
                votes.pop(slot, None)
        return votes

    def won(self, tally: Tally) -> tuple[int, ...]:
        """Return the slots that most nodes have granted."""
        votes = self.votes(tally.all_votes)
        return tuple(sorted(votes, key=lambda slot: (-votes[slot], self._distance(slot)))[: self._wanted])

    def is_within(self, tally: Tally) -> bool:
        """Whether nodes were asked what is taken, and told of nothing beyond the limit."""
        return self.tells and not self._taken(tally.all_votes, Counter()).beyond(self.permits)

    @staticmethod
    def _taken(tally: Votes, votes: Counter[int]) -> Taken:
        """Return what others have, as far as the nodes that granted know."""
        own = {slot for slot, count in votes.items() if count >= tally.quorum}
        return Taken(((grant.taken, grant.slots) for grant in tally.grants), own)

    # What to ask for next.

    def exchange(self, tally: Tally, *, newer: bool) -> bool:
        """Choose other slots after a round that was not won; return whether there are any to ask for at once.

        Args:
            tally: The round.
            newer: Whether another limit holds since: what was chosen under an older one may be too much.
        """
        if self._rounds >= _ROUNDS:
            return False
        self._exact = () if newer else self.choose(tally)
        self._start %= self._limit.permits
        return newer or bool(self._exact)

    def insist(self, tally: Tally) -> bool:
        """Choose the slots that were won already; return whether they may be asked for once more."""
        if self._rounds >= _ROUNDS:
            return False
        self._exact = self.won(tally)
        return True

    def widen(self) -> None:
        """Ask for any slots again: the next round takes a place in the line as well."""
        self._exact, self._rounds = (), 0

    def choose(self, tally: Tally) -> tuple[int, ...]:
        """Return the slots that the most nodes may grant; none if there are not enough that a quorum may."""
        chances: list[Callable[[int], float]] = []
        candidates: set[int] = set()
        reserved: frozenset[int] = frozenset()
        if self.tells:
            # Of exact slots, all that are free may be reserved: then others have to be looked for.
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
        """Return how likely a node grants a slot that has these now, and took those first."""
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
