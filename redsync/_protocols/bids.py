"""Bids: how a permit asks for slots, and who of those that wait is served first. Shared by all that is counted.

A semaphore of P permits is P *slots*, each of them owned by one permit at a time as a lock is: a permit has a slot if a
quorum of nodes keeps it there. Two quorums meet, so two permits never have the same slot, and there are no more than P.

* *The first try* names a slot to start from, by chance; each node grants the first free ones from there on, cyclically.
  Nodes on which the same slots are taken choose the same ones, so that one round is enough; that is the usual case.
* *If nodes chose differently*, the bid picks those slots that most nodes have granted or may still have free, and asks
  for exactly them, at once. A node exchanges what it granted before.
* *If there is no room*, the permit waits in line, by a ticket drawn as for the fair lock (see `places`). A node grants
  only what is left when everybody before it has got what it wants. So who waits for many is not overtaken by those who
  want few, and who fits is not held up.

How many slots there are is kept by the nodes, with a version. A grant is for one version, so a quorum of grants is won
under the one limit that a quorum of nodes has; nodes that know an older one learn it from the question itself. What a
lowered limit asks for besides is in `shrinking`, which limits are believed in `_core.limits`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from typing import Any

from redsync._core.effects import Arg
from redsync._core.holds import HoldState, granted_slots
from redsync._core.limits import Limit
from redsync._core.ownership import Owner
from redsync._core.quorum import Choice, Tally, Verdict
from redsync._protocols.lease import milliseconds
from redsync._protocols.places import PLACE_KEPT, SPREAD, highest_ticket, patience
from redsync._protocols.rounds import refusals, type_error
from redsync._protocols.shrinking import MOST_BYTES, Taken
from redsync._protocols.windows import Window
from redsync.exceptions import ConfigurationError, RedsyncError

__all__ = ["Bid"]

_FULL, _TAKEN, _OTHER_LIMIT = b"full", b"taken", b"limit"

_ROUNDS = 4
"""Rounds in which one try may look for slots that a quorum of nodes has free, before it is undone and made anew."""

_SPARE = 4
"""Further candidates that are looked for in each bit map: slots of one node may be taken on others."""


class Bid:
    """One permit's asking for slots, and its place in line; see `places.Place`.

    Attributes:
        taken: Whether nodes may have a place of it.
        kept: Seconds for which they keep it.
        mark: None: what gets free is not handed over.
        window: Of a rate limiter: what its permits last for. They are not held, they only run out.
        unsettled: False: its ticket is its own choice.
        contested: Whether the limit of some node was another one of the same version, when the last round was over.
    """

    mark: bytes | None = None
    unsettled = False

    def __init__(
        self,
        name: str | bytes,
        owner: Owner,
        wanted: int,
        limit: Limit,
        luck: Callable[[], float],
        *,
        waits: bool,
        window: Window | None = None,
    ) -> None:
        """Begin to ask.

        Args:
            name: The semaphore's name, for messages.
            owner: The permit.
            wanted: How many slots, all or none.
            limit: What is known of the limit; it is kept up to date.
            luck: Returns a random number in [0, 1).
            waits: Whether to take a place in line.
            window: Of a rate limiter: what its permits last for.
        """
        self._name = name
        self._owner = owner
        self._wanted = wanted
        self._limit = limit
        self._luck = luck
        self._waits = waits
        self.window = window
        self.kept = PLACE_KEPT if window is None else window.place_kept
        self._ticket = 0
        self._suspended = False
        # The version, the limit, and whether nodes tell what is taken, as they were asked.
        self._asked = limit.version, limit.permits, False
        self._anew()
        self._again = False
        self.taken = False
        self.contested = self._newer = False

    def _anew(self) -> None:
        """Begin another try: nothing is known of what nodes have free."""
        self._rounds = 0
        self._start = int(self._luck() * self._limit.permits)
        self._exact: tuple[int, ...] = ()
        # By node, what it took at first, and how far it had to go for that: what it passed over is taken there.
        self._first: dict[int, tuple[int, ...]] = {}

    # Asking.

    def ask(self, now: float) -> tuple[Arg, ...]:  # noqa: ARG002
        if not self._again:
            self._anew()
        self._again = False
        self._rounds += 1
        self.taken = self.taken or (self._ticket > 0 and not self._suspended)
        exact = b",".join(b"%d" % slot for slot in self._exact)
        limit = self._limit
        self._asked = limit.version, limit.permits, limit.lowered
        tells = int(limit.lowered)
        return *self._place(), limit.version, limit.permits, self._start, exact, tells, *limit.window

    def _place(self) -> tuple[Arg, ...]:
        keeps = self._waits and not self._suspended
        return milliseconds(self.kept) if keeps else 0, self._ticket, self._owner.channel

    @property
    def place(self) -> tuple[Arg, ...]:
        """What an undoing says to get the place back that grants have taken away; empty if there is none."""
        return (self._wanted, 0, *self._place()) if self.taken and self._waits and not self._suspended else ()

    def judge(self, reply: Any) -> bool:
        """Tell a granting reply from a refusing one."""
        if reply.__class__ is bytes or self._tells(reply):
            slots = granted_slots(reply)
            if len(slots) != self._wanted or (self._asked[2] and max(slots) >= self._asked[1]):
                raise ValueError("a grant names as many slots as were wanted, all of them below the limit")
            return True
        if reply.__class__ is int and reply == 0:
            return False
        if reply.__class__ is not list or [word.__class__ for word in reply[:4]] != [int, bytes, int, int]:
            raise ValueError("an acquire is answered by slots, or by the reason why there are none")
        if [word.__class__ for word in reply[4:]] != [bytes, int] or len(reply[4]) > MOST_BYTES:
            raise ValueError("a refusal tells what is taken, and the limit")
        if reply[1] == _OTHER_LIMIT and reply[4]:
            Limit.read(reply[4])
        return False

    def _tells(self, reply: Any) -> bool:
        """Whether that is a grant which tells what is taken."""
        asked = self._asked[2] and reply.__class__ is list
        return asked and [word.__class__ for word in reply] == [bytes, bytes] and len(reply[1]) <= MOST_BYTES

    def decide(self, tally: Tally) -> Verdict:
        """Return WON if a quorum of nodes has granted each of so many slots."""
        votes = self._votes(tally)
        best = sorted(votes.values(), reverse=True)[: self._wanted]
        least = best[-1] if len(best) == self._wanted else 0
        if least >= tally.quorum:
            return Verdict.WON
        heard = tally.granted + tally.refused
        unheard = len(tally.nodes) - heard - tally.failed
        if tally.without_quorum or not unheard:
            return Verdict.LOST
        # Who waits in line is in no hurry: a node that is not heard may have granted, and that would have to be undone.
        if self._ticket or least + unheard >= tally.quorum or heard < tally.quorum:
            return Verdict.PENDING
        # Those who are heard are not enough for these slots, but perhaps for others; else it takes the rest.
        full = sum(reply[1] == _FULL for reply in refusals(tally) if reply)
        hopeless = heard - full + unheard < tally.quorum
        return Verdict.LOST if hopeless or self._choose(tally) else Verdict.PENDING

    def _votes(self, tally: Tally) -> Counter[int]:
        """Return how many nodes have granted each slot, those left out that make up for slots beyond the limit."""
        granted = _grants(tally)
        votes = Counter(slot for reply in granted for slot in granted_slots(reply))
        if self._asked[2]:
            for slot in self._taken(tally, votes).reserved(self._asked[1]):
                votes.pop(slot, None)
        return votes

    @staticmethod
    def _taken(tally: Tally, votes: Counter[int]) -> Taken:
        """Return what others have, as far as the nodes that granted know."""
        own = {slot for slot, count in votes.items() if count >= tally.quorum}
        return Taken(((reply[1], granted_slots(reply)) for reply in _grants(tally)), own)

    @property
    def enough(self) -> Callable[[Tally], bool]:
        return lambda tally: self.decide(tally) is Verdict.LOST

    def take(self, state: HoldState, tally: Tally) -> None:
        """Note in a hold that was won which slots it has."""
        self._hear(tally)
        state.slots, state.limit = self._won(tally), self._limit
        version, permits, tells = self._asked
        self._limit.prove(version)
        if tells and version == self._limit.version and not self._taken(tally, Counter()).beyond(permits):
            self._limit.lowered = False

    def _won(self, tally: Tally) -> tuple[int, ...]:
        votes = self._votes(tally)
        return tuple(sorted(votes, key=lambda slot: (-votes[slot], self._distance(slot)))[: self._wanted])

    # Being refused.

    def refusal(self, tally: Tally) -> RedsyncError | None:
        """Learn the limit; return the error to raise if it can't be had at all.

        That is so if the nodes have another limit than the programs, if there are fewer permits than are wanted, or
        if the key is in use for something else.
        """
        others, limit = self._hear(tally), self._limit
        if self._wanted > limit.permits:
            return ConfigurationError(
                f"semaphore {self._name!r} was resized to {limit.permits} permits: {self._wanted} at once can't be had"
            )
        if len(others) > len(tally.nodes) - tally.quorum:
            return limit.differs(self._name, others[0])
        return type_error(self._name, tally, limit.noun)

    def _hear(self, tally: Tally) -> list[Limit]:
        """Learn the newest limit that was told; return those of our version, or of another kind, that contradict it."""
        limit, before = self._limit, self._limit.version
        told = [reply[4] for reply in refusals(tally) if reply and reply[1] == _OTHER_LIMIT]
        others = [Limit.read(text) for text in told if text]
        alike = [other for other in others if other.per_us == limit.per_us]
        # Who knows none, or an older one, refuses ours as void.
        void = told.count(b"") + sum(other.version < before for other in alike)
        if void > len(tally.nodes) - tally.quorum and before == self._asked[0]:
            limit.forget()
        for other in alike:
            limit.learn(other.version, other.permits)
        others = [other for other in others if other.per_us != limit.per_us]
        if limit.version == before:
            others += [other for other in alike if other.version == before]
        self.contested, self._newer = bool(others), limit.version != before
        return others

    def exchange(self, tally: Tally) -> bool:
        """Take note of a round that was not won; return whether other slots are to be asked for at once."""
        if self._rounds >= _ROUNDS:
            return False
        # What was chosen under an older limit may be too much now.
        self._exact = () if self._newer else self._choose(tally)
        self._start %= self._limit.permits
        self._again = self._newer or bool(self._exact)
        return self._again

    def insist(self, tally: Tally) -> bool:
        """Take note of a round that was won, but too late to count; return whether to ask for the same at once.

        The nodes have the slots already, so all that is asked for is more time.
        """
        if self.window is None:
            return False
        self.window.note(tally.at - tally.sent_at, late=True)
        if self._rounds >= _ROUNDS:
            return False
        self._exact, self._again = self._won(tally), True
        return True

    def learn(self, tally: Tally) -> bool:
        told = [reply[2] for reply in refusals(tally) if reply]
        suspended, self._suspended = self._suspended, False
        if not (suspended and self._ticket):
            if self._ticket or not self._waits or len(told) < tally.quorum:
                return False
            self._ticket = highest_ticket(told) + 1
        self._again, self._exact, self._rounds = True, (), 0
        return True

    def suspend(self) -> bool:
        self._suspended = True
        return False

    def _choose(self, tally: Tally) -> tuple[int, ...]:
        """Return the slots that the most nodes may grant; none if there are not enough that a quorum may.

        A node that took the first free ones from the start on has shown that all it passed over are taken.
        """
        chances: list[Callable[[int], float]] = []
        candidates: set[int] = set()
        reserved: frozenset[int] = frozenset()
        if self._asked[2]:
            # Of exact slots, all that are free may be reserved: then others have to be looked for.
            taken = self._taken(tally, Counter())
            reserved = taken.reserved(self._limit.permits)
            candidates.update(self._free_in(taken, reserved))
        for node, (choice, reply) in enumerate(zip(tally.choices, tally.replies, strict=True)):
            if choice is Choice.GRANTED:
                slots = granted_slots(reply)
                candidates.update(slots)
                first = self._first.setdefault(node, () if self._exact else slots)
                told = partial(_chance_in, Taken([(reply[1], slots)])) if self._asked[2] else None
                chances.append(told or partial(self._chance, slots, first))
            elif choice is Choice.REFUSED and reply and reply[1] == _TAKEN:
                taken = Taken([(reply[4], ())])
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

    # Waiting.

    def leave(self) -> None:
        self._ticket, self.taken = 0, False

    @staticmethod
    def is_split(tally: Tally) -> bool:
        """Whether there may be room on a quorum of nodes: then waiting to be woken would most likely be vain.

        The same if all that was granted is reserved: no node knows of enough to refuse. That ends when what lives on
        bare majorities has been filled up.
        """
        full = [reply for reply in refusals(tally) if reply and reply[1] == _FULL]
        return len(full) + tally.choices.count(None) < tally.quorum

    def pause(self, tries: int, luck: float) -> float | None:  # noqa: ARG002
        return None

    @property
    def spread(self) -> float:
        """Seconds over which those who wait spread their looks when the holders' time is up."""
        # Those who wait for a window are told different times.
        return SPREAD if self.window is None else 0.0

    def patience(self, tally: Tally, luck: float) -> float:
        if self.window is None:
            return patience(tally, luck, 3, self.kept)
        ahead = min((reply[3] for reply in refusals(tally) if reply), default=0)
        return self.window.patience(luck, ahead / self._limit.permits)


def _chance_in(taken: Taken, slot: int) -> float:
    return 0.0 if slot in taken else 1.0


def _grants(tally: Tally) -> list[Any]:
    votes = zip(tally.choices, tally.replies, strict=True)
    return [reply for choice, reply in votes if choice is Choice.GRANTED]
