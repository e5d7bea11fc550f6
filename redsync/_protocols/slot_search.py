"""The slots that a permit asks for next, and those that a round has won for it; see `slot_claims`.

* *The first round of a try* names a slot to start from: one that this client has released lately, because all nodes
  most likely have it free; else a random one. Each node grants the first free slots from there on. To an ask for one
  slot, a node usually replies how far from the start it is. So the replies of nodes that chose alike are the same small
  number, and the client reads it once.
* *If nodes chose differently*, the permit asks for the slots that most nodes have granted or may still have free. A
  node that granted the first free slots has shown that all slots it skipped are taken.
* *After a shrink*, nodes also tell which slots are taken, and the permit leaves reserved slots out, see `shrinking`.
* *A rate limiter's* slots run out, on each node at another instant. If few are free, nodes choose different ones, and
  most guesses are wrong. So from the first such round on the client asks which are taken, until one round is enough.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice

from redsync._core.effects import Arg
from redsync._core.limits import Limit
from redsync._core.permits import write_slots
from redsync._core.quorum import Tally, Votes
from redsync._protocols.rounds import told
from redsync._protocols.shrinking import Taken
from redsync._protocols.slot_answers import TAKEN

__all__ = ["SlotSearch"]

_ROUNDS = 4
"""The most rounds of one try in search of slots that a quorum has free, before a rollback and a new try."""

_SPARE = 4
"""Spare candidates from each bit map: slots that are free on one node may be taken on others."""


class SlotSearch:
    """The findings of one permit's acquire in one try.

    Attributes:
        version: The limit's version in the latest ask; `permits`: the limit itself.
        start: The slot from which nodes search.
        tells: True if that ask wants nodes to tell which slots are taken.
    """

    # The state before the first try. Class attributes, because most permits are granted in the first round.
    version = permits = start = _rounds = 0
    tells = False
    _exact: tuple[int, ...] = ()

    def __init__(self, wanted: int, limit: Limit, random: Callable[[], float]) -> None:
        self._wanted = wanted
        self._limit = limit
        self._random = random
        # For each node, the slots that it granted first: the slots that it skipped on the way there are taken.
        self._first: dict[int, tuple[int, ...]] = {}

    def begin(self) -> None:
        """Begin another try, which knows nothing of free slots."""
        self._rounds = 0
        self.start = self._choose_start()
        self._exact = ()
        self._first = {}

    def _choose_start(self) -> int:
        limit = self._limit
        while limit.released:
            if (slot := limit.released.pop()) < limit.permits:
                return slot
        return int(self._random() * limit.permits)

    def next_round(self) -> None:
        """Begin another round, under the limit of this instant."""
        self._rounds += 1
        limit = self._limit
        if self.is_outdated:
            # Slots chosen under another limit may be beyond this one.
            self._exact = ()
            self.start %= limit.permits
        self.version, self.permits, self.tells = limit.version, limit.permits, limit.lowered or limit.scarce

    @property
    def is_outdated(self) -> bool:
        """True if the limit has changed since the round began."""
        return self.version != self._limit.version

    @property
    def is_exact(self) -> bool:
        """True if the round asks for exact slots."""
        return self._exact != ()

    @property
    def is_particular(self) -> bool:
        """True if the ask of the round differs from the usual one of its semaphore in more than where to start."""
        return self._exact != () or self.tells or self._limit.per_us != 0

    @property
    def words(self) -> tuple[Arg, ...]:
        """The round's further arguments."""
        return self.version, self.permits, self.start, write_slots(self._exact), int(self.tells), *self._limit.window

    # After a won round.

    def votes(self, tally: Votes) -> Counter[int]:
        """Return how many nodes have granted each slot, without reserved slots."""
        votes = Counter(slot for grant in tally.grants for slot in grant.slots)
        if self.tells:
            for slot in self._taken(tally, votes).reserved(self.permits):
                votes.pop(slot, None)
        return votes

    def best(self, tally: Votes) -> tuple[tuple[int, ...], int]:
        """Return the wanted number of slots that most nodes have granted, and how many nodes that is.

        A renewal makes a node keep all slots of a permit, or none. So for a semaphore only nodes count that granted all
        of them. A rate limiter renews nothing: each of its slots needs a separate quorum.
        """
        votes = self.votes(tally)
        if self._limit.per_us:
            slots = tuple(sorted(votes, key=lambda slot: (-votes[slot], self._distance(slot)))[: self._wanted])
            return slots, votes[slots[-1]] if len(slots) == self._wanted else 0
        alike = Counter(frozenset(grant.slots) for grant in tally.grants if votes.keys() >= set(grant.slots))
        most, count = max(alike.items(), key=lambda item: item[1], default=((), 0))
        return tuple(sorted(most, key=self._distance)), count

    def agreed(self, tally: Tally) -> tuple[int, ...]:
        """Return the slots that a quorum granted, all of these nodes the same ones, as usual; else empty."""
        grants = tally.grants
        # Of a quorum that agrees, only the nodes that also tell what is taken must be looked at one by one.
        if self.tells or len(grants) < tally.quorum:
            return ()
        usual = max(grants, key=grants.count)
        return usual.slots if grants.count(usual) >= tally.quorum else ()

    def won(self, tally: Tally) -> tuple[int, ...]:
        """Return the wanted number of slots: those that most nodes have granted."""
        # Late votes can't outweigh a quorum.
        if agreed := self.agreed(tally):
            return agreed if len(agreed) == 1 else tuple(sorted(agreed, key=self._distance))
        return self.best(tally.all_votes)[0]

    def note_won(self) -> None:
        """Record that the latest round won the slots."""
        if self._limit.scarce and self._rounds <= 1:
            self._limit.scarce = False

    def is_within(self, tally: Tally) -> bool:
        """Return whether nodes, asked which slots are taken, told none beyond the limit."""
        return not self._taken(tally.all_votes, Counter()).beyond(self.permits)

    @staticmethod
    def _taken(tally: Votes, votes: Counter[int]) -> Taken:
        """Return the slots that others have, as far as the granting nodes know."""
        own = {slot for slot, count in votes.items() if count >= tally.quorum}
        return Taken(((grant.taken, grant.slots) for grant in tally.grants), own)

    # After a lost round.

    def exchange(self, tally: Tally) -> bool:
        """Choose other slots after a round that was not won; return whether to ask at once, perhaps for any slots."""
        if self._limit.per_us and tally.granted:
            self._limit.scarce = True
        if self._rounds >= _ROUNDS:
            return False
        self._exact = self.choose(tally)
        return self.is_exact or self.is_outdated

    def insist(self, tally: Tally, more: int = 0) -> bool:
        """Choose the slots just won; return whether the permit may ask for them once more; `more`: rounds to add."""
        if self._rounds >= _ROUNDS + more:
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
            # All free slots among those asked for may be reserved, so look for others too.
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
        # A node that names a slot beyond the limit is broken. Other nodes would allocate all bits up to that slot.
        below = self._limit.permits
        possible = [slot for slot, each in scores.items() if slot < below and sum(map(bool, each)) >= tally.quorum]
        if len(possible) < self._wanted:
            return ()
        possible.sort(key=lambda slot: (-sum(scores[slot]), self._distance(slot)))
        return tuple(possible[: self._wanted])

    def _chance(self, has: tuple[int, ...], first: tuple[int, ...], slot: int) -> float:
        """Return how likely a node grants `slot`; `has`: its grants now, `first`: those it granted first."""
        if slot in has:
            return 1.0
        passed = max(map(self._distance, first), default=-1)
        return 0.5 if slot in first or self._distance(slot) > passed else 0.0

    def _free_in(self, taken: Taken, reserved: frozenset[int]) -> Iterable[int]:
        permits = self._limit.permits
        cycle = ((self.start + i) % permits for i in range(permits))
        return islice((slot for slot in cycle if slot not in taken and slot not in reserved), self._wanted + _SPARE)

    def _distance(self, slot: int) -> int:
        return (slot - self.start) % self._limit.permits


def _chance_in(taken: Taken, slot: int) -> float:
    return 0.0 if slot in taken else 1.0
