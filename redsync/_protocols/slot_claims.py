"""Claims of slots: which slots a permit asks for, and which a round has won. Semaphores and rate limiters share this.

A semaphore of P permits is P *slots*. As with a lock, each slot has one owner at a time: a permit has a slot if a
quorum of nodes keeps it there. Two quorums meet, so two permits never have the same slot, and there are at most P.

* *The first try* names a slot to start from; each node grants the first free ones from there on, cyclically. Nodes on
  which the same slots are taken choose the same ones, so one round is enough. That is the usual case.
* *If nodes chose differently*, the permit picks slots that most nodes have free, and asks for exactly these, at once:
  each grant tells all slots that are taken on its node. A node replaces the slots that it granted before, unless others
  have some of these meanwhile.
* *If there is no room*, the permit waits in the queue, by a ticket drawn as for the fair lock (see `SlotQueue`). A node
  grants only slots that remain when every permit before it has got what it wants. So permits of few slots do not
  overtake one of many, and a permit that fits does not have to wait.

The nodes keep the number of slots, with a version. A grant is for one version, so a quorum of grants is won under the
one limit that a quorum of nodes has. Nodes that know an older limit learn the new one from the ask itself. `shrinking`
explains what else a lowered limit requires, and `_core.permits` which limits are believed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from redsync._core.effects import Broadcast, Steps, Tell, Wait, broadcast, tell, wait
from redsync._core.holds import HoldState
from redsync._core.permits import Limit, PermitState, SlotGrant, read_slots, write_slots
from redsync._core.quorum import Choice, Tally, Verdict
from redsync._core.scripts import Arg, Command, Script
from redsync._core.session import Session
from redsync._core.timing import milliseconds
from redsync._protocols.answers import WRONG_TYPE, Refusal, no_quorum, refusals_of_owners, time_left, type_error
from redsync._protocols.claims import LOOK, AcquireRequest, Claim
from redsync._protocols.holding import rollback, rollback_of
from redsync._protocols.queue_policies import FifoByNumber
from redsync._protocols.shrinking import bits_of, first_in, read_bits, reserved
from redsync._protocols.windows import Window
from redsync.exceptions import ConfigurationError, RedsyncError

__all__ = ["OvertakenError", "SlotClaim", "SlotQueue", "SlotRefusal", "WindowClaim", "WindowQueue", "read_of_slots"]

FULL, OTHER_LIMIT = b"full", b"limit"
"""Reasons of a node that refuses slots: no room, another limit."""

NO_PLACE: Final = (0, 0, b"")
"""The words of an acquire that asks for no place: how long to keep it, its ticket, the wake channel."""

CONFIRM = Script.load("semaphore_confirm")

_ROUNDS = 4
"""The most rounds of one try in search of slots that a quorum has free, before a rollback and a new try."""


class SlotRefusal(NamedTuple):
    """One node's refusal of slots.

    Attributes:
        left_ms: Milliseconds until enough of them run out; -1 if unknown.
        reason: `FULL` or `OTHER_LIMIT`.
        ticket: The highest ticket in the node's queue.
        ahead: The number of waiters before the asker, or how many slots those want.
        limit: The limit that the node knows, if the reason is `OTHER_LIMIT`.
    """

    left_ms: int
    reason: bytes
    ticket: int
    ahead: int
    limit: Limit | None = None

    def __bool__(self) -> bool:
        return False


def read_of_slots(reply: Any, wanted: int) -> SlotGrant | SlotRefusal | Refusal:
    """Read a reply to an acquire of that many slots, once, on arrival; see `answers`.

    Raises:
        ValueError: It is not such a reply.
    """
    if reply.__class__ is int and reply == 0:
        return WRONG_TYPE
    words = [word.__class__ for word in reply] if reply.__class__ is list else []
    if words == [bytes, bytes]:
        slots = read_slots(reply[0])
        if len(slots) != wanted:
            raise ValueError("a grant names as many slots as the ask wanted")
        return SlotGrant(slots, read_bits(reply[1]))
    if words != [int, bytes, int, int, bytes]:
        raise ValueError("the reply to an acquire is slots and those taken, or the reason why there are none")
    left_ms, reason, ticket, ahead, detail = reply
    return SlotRefusal(left_ms, reason, ticket, ahead, Limit.read(detail) if reason == OTHER_LIMIT else None)


class SlotQueue(FifoByNumber):
    """A place in the queue for the permits of a semaphore, by a ticket that the waiter chooses; see `queue_policies`.

    Nodes keep with each place how many slots it waits for. A grant removes the place, so a rollback restores the place
    of an acquire that continues waiting.
    """

    @property
    def words(self) -> tuple[Arg, ...]:
        """The place, as arguments of a script."""
        keeps = self.waits and not self._suspended
        return milliseconds(self.kept) if keeps else 0, self._ticket, self.owner.channel

    def place_to_restore(self, wanted: int) -> tuple[Arg, ...]:
        """Return the arguments by which a rollback restores a place that grants removed; empty if there is none."""
        return (wanted, 0, *self.words) if self.taken and self.waits and not self._suspended else ()

    def ask(self, now: float) -> tuple[Arg, ...]:  # noqa: ARG002
        if not self._ticket:
            return ()
        self.taken = self.taken or not self._suspended
        return self.words

    def suspend(self) -> bool:
        super().suspend()
        return False  # Any rollback wakes the next waiter. One that leaves ends a later place, if it is late.


class WindowQueue(SlotQueue):
    """A place in the queue for the permits of a rate limiter. These only run out, and nodes tell each waiter when."""

    def longest_pause(self, tally: Tally, random: float) -> float:  # noqa: ARG002
        return self.kept / 2 * (0.8 + 0.2 * random)


class SlotClaim(Claim):
    """Slots, as one permit claims them: all that it wants, or none.

    * *The first round of a try* names a slot to start from: one that this client has released lately, because all nodes
      most likely have it free; else a random one. Each node grants the first free slots from there on.
    * *If nodes chose differently*, the permit asks for slots that a quorum has free, by the bit maps that came with the
      grants.
    * *After a shrink* the permit leaves reserved slots out, see `shrinking`.
    """

    _hold_class = PermitState
    policy: SlotQueue
    # The limit's version and the limit in the latest ask, the slot from which nodes search, and the rounds of this try.
    # Class attributes for the state before the first one, because most permits are granted in the first round.
    _version = _permits = _start = _rounds = 0
    _exact: tuple[int, ...] = ()

    def __init__(self, session: Session, request: AcquireRequest, limit: Limit) -> None:
        """Begin to claim; `limit`: the client's view of the semaphore's limit, which the claim keeps up to date."""
        super().__init__(session, request)
        self.parse = partial(read_of_slots, wanted=request.holds)
        self._limit = limit

    def begin(self) -> None:
        self._rounds, self._exact = 0, ()
        self._start = self._choose_start()

    def _choose_start(self) -> int:
        limit = self._limit
        while limit.released:
            if (slot := limit.released.pop()) < limit.permits:
                return slot
        return int(self.session.random() * limit.permits)

    @property
    def _is_outdated(self) -> bool:
        """True if the limit has changed since the round began."""
        return self._version != self._limit.version

    def ask(self, claim: bytes, place: tuple[Arg, ...]) -> Command:
        limit = self._limit
        self.needs_new_claim = False
        self._rounds += 1
        if self._is_outdated:
            # Slots chosen under another limit may be beyond this one.
            self._exact = ()
            self._start %= limit.permits
        self._version, self._permits = limit.version, limit.permits
        words: tuple[Arg, ...] = self._version, self._permits, write_slots(self._exact), self._start, *limit.window
        return super().ask(claim, (*(place or NO_PLACE), *words))

    # After a round.

    def decide(self, tally: Tally) -> Verdict:
        """Return WON if a quorum of nodes granted the permit its number of slots, see `best`."""
        quorum = tally.quorum
        heard = tally.granted + tally.refused
        # The usual case, without counting.
        if heard < quorum and not tally.failed:
            return Verdict.PENDING
        unheard = len(tally.nodes) - heard - tally.failed
        _, least = self.best(tally)
        if least >= quorum:
            return Verdict.WON
        if tally.without_quorum or not unheard:
            return Verdict.LOST
        # With a place in the queue the round hears every node: one that it does not hear may have granted, and then
        # needs a rollback.
        if self.policy.taken or least + unheard >= quorum or heard < quorum:
            return Verdict.PENDING
        # With the nodes heard so far these slots can't be won, but perhaps others; if not, hear the rest.
        hopeless = heard - _full(tally) + unheard < quorum
        return Verdict.LOST if hopeless or self._choose(tally) else Verdict.PENDING

    @property
    def _may_harm_later(self) -> bool:
        """True if the latest ask must not come after the next one of this claim.

        A node that has not answered may execute it then, over an abandoned connection. An ask for exact slots, or with
        a ticket, would end slots that the node has granted since.
        """
        return self._exact != () or self.policy.taken

    def best(self, tally: Tally) -> tuple[tuple[int, ...], int]:
        """Return the wanted number of slots that most nodes have granted, and how many nodes that is.

        A renewal makes a node keep all slots of a permit, or none. So for a semaphore only nodes count that granted all
        of them. A rate limiter renews nothing: each of its slots needs a separate quorum.
        """
        grants, wanted = self._grants(tally), self.request.holds
        votes = Counter(slot for grant in grants for slot in grant.slots)
        # No other permit can believe in a slot that a quorum has granted to this one.
        own = bits_of(slot for slot, count in votes.items() if count >= tally.quorum)
        left_out = reserved(_others(grants) & ~own, self._permits)
        for slot in first_in(left_out, 0, self._permits):
            votes.pop(slot, None)
        if self._limit.per_us:
            slots = tuple(sorted(votes, key=lambda slot: (-votes[slot], self._distance(slot)))[:wanted])
            return slots, votes[slots[-1]] if len(slots) == wanted else 0
        alike = Counter(frozenset(grant.slots) for grant in grants if votes.keys() >= set(grant.slots))
        most, count = max(alike.items(), key=lambda item: item[1], default=((), 0))
        return tuple(sorted(most, key=self._distance)), count

    def _grants(self, tally: Tally) -> list[SlotGrant]:
        """Return the grants that count."""
        return tally.grants

    def _distance(self, slot: int) -> int:
        return (slot - self._start) % self._limit.permits

    def asks_again(self, tally: Tally) -> bool:
        if tally.won:
            return False
        asked = tally.sent.bit_count()
        if self._is_outdated:
            # A grant counts only under the limit of its round.
            self.needs_new_claim = tally.refused < asked
        else:
            self.needs_new_claim = self._may_harm_later and tally.refused + tally.granted < asked
        if self._rounds >= _ROUNDS:
            return False
        self._exact = self._choose(tally)
        return self._exact != () or self._is_outdated

    def _choose(self, tally: Tally) -> tuple[int, ...]:
        """Return slots that most nodes have free, of these the ones granted most; empty if a quorum has too few."""
        grants, permits, wanted = tally.grants, self._limit.permits, self.request.holds
        if len(grants) < tally.quorum:
            return ()
        mine = [bits_of(grant.slots) for grant in grants]
        free = [~grant.taken | slots for grant, slots in zip(grants, mine, strict=True)]
        possible = _on_many(free, permits)[tally.quorum] & ~reserved(_others(grants), permits)
        found: list[int] = []
        for alike in reversed(_on_many(free + mine, permits)):
            found += first_in(alike & possible, self._start, wanted - len(found))
            possible &= ~alike
        return tuple(found) if len(found) == wanted else ()

    def may_queue(self, tally: Tally) -> bool:  # noqa: ARG002  (a ticket decides the order)
        return True

    def queue(self, tally: Tally) -> bool:
        if not super().queue(tally):
            return False
        # Any slots will do: the next round takes a place in the queue as well.
        self._exact, self._rounds = (), 0
        return True

    def holder(self, tally: Tally) -> None:
        """Return None: many have the slots."""

    def is_split(self, tally: Tally) -> bool:
        """Return whether fewer nodes than a quorum refused for lack of room: then most likely no wake-up would come.

        They may also have told too few tickets to take a place in the queue, and without a place none comes at all.
        The vote is also split if all granted slots are reserved: then no node knows enough taken slots to refuse. That
        ends once those who hold permits have renewed them, or released them.
        """
        return _full(tally) < tally.quorum

    def place_to_restore(self) -> tuple[Arg, ...]:
        return self.policy.place_to_restore(self.request.holds)

    def complete(self, state: HoldState, won: Tally | None) -> None:
        assert isinstance(state, PermitState), "the hold that comes of slots"
        assert won is not None, "nodes do not hand slots over"
        if won.refused:
            self._hear(won)
        state.for_with = self.request.for_with
        state.grant(self.best(won)[0], self._limit)
        if self.request.lease is not None:
            # Once, for the rest of its lease: nodes that granted other slots, or will, would keep them for the lease.
            state.renew_at = (state.since // LOOK + 2) * LOOK

    # Being refused.

    def refusal(self, tally: Tally) -> RedsyncError | None:
        """Learn the limit; return the error to raise if the claim can never succeed.

        It can't if nodes and programs have different limits, if there are fewer permits than the claim wants, or if the
        key is in use for something else.
        """
        others, limit, request = self._hear(tally), self._limit, self.request
        if request.holds > limit.permits:
            resized = f"{limit.noun} {request.name!r} was resized to {limit}"
            return ConfigurationError(f"{resized}: {request.holds} at once can't be acquired")
        if len(others) > len(tally.nodes) - tally.quorum:
            return limit.differs(request.name, others[0])
        # On a minority of nodes a foreign value is harmless, even if the others granted different slots.
        return None if tally.granted >= tally.quorum else type_error(request.name, tally, limit.noun)

    def _hear(self, tally: Tally) -> list[Limit]:
        """Learn the newest limit that nodes told; return those that contradict it, of our version or another kind.

        Another thread may have learned it since the ask.
        """
        limit = self._limit
        others = [refusal.limit for refusal in refusals_of_owners(tally) if refusal.limit is not None]
        for other in others:
            if other.per_us == limit.per_us:
                limit.learn(other.version, other.permits)
        ours = -1 if self._is_outdated else self._version
        return [other for other in others if other.per_us != limit.per_us or other.version == ours]


class OvertakenError(Exception):
    """A quorum of nodes no longer keeps slots that an acquire had reserved; it begins again.

    Attributes:
        at: The instant at which that was known.
        reason: The error to raise if it has no time to begin again; None if others have the slots.
    """

    def __init__(self, at: float, reason: RedsyncError | None) -> None:
        super().__init__(at, reason)
        self.at = at
        self.reason = reason


class WindowClaim(SlotClaim):
    """Slots of a rate limiter: they are never held, renewed or released; they expire automatically.

    An acquire under several rates has a claim for each. All but the last only *reserve* slots. The last one waits for
    its own, and then its message to the nodes is about all of them, and it looks at the clock once: so the proof in
    `windows` holds for each. The first part of the allowance must cover the wait, so the acquire asks once more for
    slots that it reserved long ago.
    """

    def __init__(
        self,
        session: Session,
        request: AcquireRequest,
        limit: Limit,
        window: Window,
        *,
        reserves: bool = False,
        others: Sequence[WindowClaim] = (),
    ) -> None:
        """Begin to claim; `reserves`: only reserve slots; `others`: the claims that have reserved slots before."""
        super().__init__(session, request, limit)
        self._window = window
        self._reserves = reserves
        self._others = others
        self._telling = self._too_short = self._began = 0.0
        self._late = self._told = False
        self._answered = self._counted = session.all_nodes
        self.guard, self.round_timeout, self.place_kept = window.guard, window.round_timeout, window.place_kept

    @property
    def reserved(self) -> PermitState | None:
        """The slots that it has reserved; None if it has none."""
        state = self.request.state
        assert state is None or isinstance(state, PermitState), "the hold that comes of slots"
        return state

    @property
    def won_at(self) -> float:
        """The instant at which the round that won was over."""
        return self._began

    def ask(self, claim: bytes, place: tuple[Arg, ...]) -> Command:
        self._telling = self._window.telling(self._too_short)
        self.lease = self._window.asked(self._telling)
        self._counted = self.session.all_nodes
        return super().ask(claim, place)

    def _grants(self, tally: Tally) -> list[SlotGrant]:
        return [grant for node, grant in enumerate(tally.answers) if grant and self._counted >> node & 1]

    def seconds_to_look(self, tally: Tally, random: float) -> float:  # noqa: ARG002  (nodes tell each waiter another time)
        """Return in how many seconds to ask, so that the ask arrives when the slots run out.

        Nodes counted from its arrival there, and the next one needs about as long. A little too early costs one more
        ask; each instant too late is lost to the rate.
        """
        return max(time_left(tally) - (tally.at - tally.sent_at), 0.0)

    def valid_until(self, tally: Tally) -> float:
        """Return until when a win in that round counts as a success."""
        return tally.at if self._late else self._began + self._allowed

    @property
    def _allowed(self) -> float:
        """Within how many seconds nodes must have been told of the success, for it to count."""
        return min(each._telling for each in (self, *self._others))

    def is_confirmed(self, tally: Tally) -> bool:
        """Return True if nothing is left to confirm, as it only reserves slots."""
        self._began, self._told = tally.at, False
        self._answered = tally.nodes_with(Choice.GRANTED) if self._may_harm_later else self.session.all_nodes
        self.needs_new_claim = not self._reserves
        return self._reserves

    def confirm(self, tally: Tally, claim: bytes, timeout_at: Callable[[float], float]) -> Steps[tuple[Tally, float]]:
        """Tell nodes of the success, and look at the clock again: the round counts if that was quick enough."""
        asked = [tally.sent_at]
        for other in self._others:
            state, self._began = yield from other._keep(self._began, timeout_at)
            asked.append(state.since)
        self._late = self._began - min(asked) >= self._window.round_limit
        if self._late:
            self.needs_new_claim = False  # Nodes hear of no success, so none is to be kept longer.
            return tally, self._began
        for other in self._others:
            assert other.reserved is not None, "it has just been asked for"
            yield from other._tell_nodes(other.reserved.claim, other.reserved.slots)
        yield from self._tell_nodes(claim, self.best(tally)[0])
        at = (yield from wait(Wait(self._began))).at  # A wait for a past instant only reads the clock.
        took, allowed = at - self._began, self._allowed
        for each in (self, *self._others):
            each._window.note(took, each._telling)
            if took >= allowed:
                each._too_short = allowed
        return tally, at

    def _tell_nodes(self, claim: bytes, slots: tuple[int, ...]) -> Steps[None]:
        """Tell nodes of a success, and how long to keep its slots."""
        window, request = self._window, self.request
        kept_ms = b"%.3f" % (1000 * window.needed(self._telling))
        message = Command(CONFIRM, request.keys.all, (claim, write_slots(slots), kept_ms))
        if (state := self.reserved) is not None:
            self._told, state.may_keep = True, self.session.all_nodes
        if self.policy.taken:
            # A node that hangs would keep the place of a waiter that has been served. The message itself is never
            # pending: a node that gets it late keeps the slots from then on.
            nodes, unused = self.session.all_nodes, request.owner.claim(next(self.session.claims))
            yield from tell(rollback(request.kind, request.keys, request.owner, unused, leave=True, deliver_to=nodes))
        yield from tell(Tell(message, request.owner))

    def _keep(self, now: float, timeout_at: Callable[[float], float]) -> Steps[tuple[PermitState, float]]:
        """Ask once more for reserved slots if the latest ask was long ago; return them, and the instant.

        If nodes heard of a success that did not count, a new claim asks: the message could shorten the old one once
        more, if it came late. Else only nodes count that have answered each former ask, see `_may_harm_later`.

        Raises:
            OvertakenError: A quorum no longer keeps the slots.
        """
        session, request, state = self.session, self.request, self.reserved
        assert state is not None, "it has reserved slots"
        if not self._told and now - state.since < self.round_timeout:
            return state, now
        if self._is_outdated:
            # Under a new limit nodes would grant the slots that it has under the old one.
            raise OvertakenError(now, None)
        # Where it has slots, an ask that names none lengthens their time, even if others wait.
        self._exact, counted = (), self._answered
        if self._told:
            yield from tell(rollback_of(state, leave=False))
            state.claim, self._exact = request.owner.claim(next(session.claims)), state.slots
            self._told, counted = False, session.all_nodes
        command = self.ask(state.claim, ())
        self._counted = counted
        state.may_keep = session.all_nodes
        again = Broadcast(command, request.owner, self.parse, timeout_at(now), self.guard, decide=self.decide)
        tally = yield from broadcast(again)
        session.note(request, "round", tally.at, tally)
        if not tally.won:
            label = request.kind.label
            raise OvertakenError(tally.at, no_quorum(request.name, tally, label) if tally.without_quorum else None)
        state.grant(self.best(tally)[0], self._limit)
        state.since, self._answered = tally.sent_at, counted & tally.nodes_with(Choice.GRANTED)
        return state, tally.at

    def asks_again(self, tally: Tally) -> bool:
        if not tally.won:
            return super().asks_again(tally)
        # For the same slots once more: the nodes have granted them, but the success would come too late.
        # Under a new limit nodes would grant the slots that this claim has under the old one.
        late = self._may_harm_later and tally.refused + tally.granted < tally.sent.bit_count()
        self.needs_new_claim = self.needs_new_claim or self._is_outdated or late
        if self._rounds >= _ROUNDS:
            return False
        self._exact = self.best(tally)[0]
        return True

    def register(self, state: HoldState) -> None:
        """Do nothing: permits of a rate limiter are not held."""


def _others(grants: Iterable[SlotGrant]) -> int:
    """Return the slots that others have, as far as the granting nodes know."""
    found = 0
    for grant in grants:
        found |= grant.taken & ~bits_of(grant.slots)
    return found


def _on_many(maps: Sequence[int], permits: int) -> list[int]:
    """Return at index k, from 0 on, the slots below the limit that are in at least k of the maps."""
    alike = [(1 << permits) - 1] + [0] * len(maps)
    for each in maps:
        for i in reversed(range(len(maps))):
            alike[i + 1] |= alike[i] & each
    return alike


def _full(tally: Tally) -> int:
    """Return how many nodes refused for lack of room."""
    return sum(refusal.reason == FULL for refusal in refusals_of_owners(tally))
