"""Claims of slots: which slots a permit asks for, and which a round has won. Semaphores and rate limiters share this.

A semaphore of P permits is P *slots*. As with a lock, each slot has one owner at a time: a permit has a slot if a
quorum of nodes keeps it there. Two quorums meet, so two permits never have the same slot, and there are at most P.

* *The first try* names a slot to start from; each node grants the first free ones from there on, cyclically. Nodes on
  which the same slots are taken choose the same ones, so one round is enough. That is the usual case.
* *If nodes chose differently*, the permit picks the slots that most nodes have granted or may still have free, and asks
  for exactly these, at once. A node replaces the slots that it granted before. (See `slot_search`.)
* *If there is no room*, the permit waits in line, by a ticket drawn as for the fair lock (see `slot_lines`). A node
  grants only slots that remain when every permit before it has got what it wants. So permits of few slots do not
  overtake one of many, and a permit that fits does not have to wait.

The nodes keep the number of slots, with a version. A grant is for one version, so a quorum of grants is won under the
one limit that a quorum of nodes has. Nodes that know an older limit learn the new one from the ask itself. `shrinking`
explains what else a lowered limit requires, and `_core.limits` which limits are believed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from redsync._core.effects import Arg, Command, Steps, Tell, Wait, tell, wait
from redsync._core.holds import HoldState
from redsync._core.limits import Limit
from redsync._core.permits import PermitState, mismatched
from redsync._core.quorum import Judge, Tally, Verdict
from redsync._core.runner import Session
from redsync._core.timing import milliseconds
from redsync._protocols.acquire_requests import AcquireRequest
from redsync._protocols.claims import Claim, Settlement
from redsync._protocols.places import Place, Waiting
from redsync._protocols.rounds import time_left, told, type_error
from redsync._protocols.slot_answers import FULL, OTHER_LIMIT, read_of_slots
from redsync._protocols.slot_lines import NO_PLACE, SlotLine, WindowLine
from redsync._protocols.slot_search import SlotSearch
from redsync._protocols.windows import Window, settlement
from redsync.exceptions import ConfigurationError, RedsyncError

__all__ = ["SlotClaim", "WindowClaim"]


class SlotClaim(Claim):
    """Slots, as one permit claims them: all that it wants, or none.

    Attributes:
        contested: True if in the last round a node had another limit of the same version, or one of another kind.
    """

    _hold_class = PermitState

    def __init__(self, session: Session, request: AcquireRequest, limit: Limit) -> None:
        """Begin to claim; `limit`: the client's view of the semaphore's limit, which the claim keeps up to date."""
        super().__init__(session, request)
        self._limit = limit
        self._search = SlotSearch(request.holds, limit, session.random)
        self._line: SlotLine | None = None
        self.contested = False

    @property
    def _lease_handed(self) -> float:
        return 0.0  # Nodes do not hand slots over.

    def first_place(self, started: float) -> Place | None:  # noqa: ARG002
        self.begin()
        return None  # A ticket comes from refusals, so the first try asks for no place.

    def _new_place(self, waiting: Waiting) -> Place:
        self._line = line = self._new_line(waiting)
        return line

    def _new_line(self, waiting: Waiting) -> SlotLine:
        return SlotLine(waiting)

    def begin(self) -> None:
        self._search.begin()

    def ask(self, claim: bytes, place: tuple[Arg, ...]) -> Command:
        self.must_renumber = False
        search = self._search
        search.next_round()
        if place or search.is_particular:
            return self._command(claim, (*(place or NO_PLACE), *search.words))
        return self._plain_command(claim)

    def _plain_command(self, claim: bytes) -> Command:
        request, search, prepared = self._request, self._search, self._session.prepared
        limit = search.version, search.permits
        forms = prepared.forms[request.kind.noun, request.keys.lock, request.holds, request.lease, limit]
        ask = forms.ask
        if ask is None:
            args = request.holds, forms.terms.lease_ms, self._memory, 0, 0, b"", *limit
            forms.ask = ask = prepared.spell_numbered(request.kind.acquire, request.keys.all, args, (b"", 0))
        return ask.command(claim, search.start)

    @property
    def judge(self) -> Judge:
        search = self._search
        return partial(
            read_of_slots,
            wanted=self._request.holds,
            permits=search.permits,
            start=None if search.is_exact else search.start,
            tells=search.tells,
        )

    def decide(self, tally: Tally) -> Verdict:
        """Return WON if a quorum of nodes granted the permit its number of slots, see `SlotSearch.best`."""
        search, quorum = self._search, tally.quorum
        heard = tally.granted + tally.refused
        # The usual case, without counting.
        if heard < quorum and not tally.failed:
            return Verdict.PENDING
        if tally.granted >= quorum and search.agreed(tally):
            return Verdict.WON
        unheard = len(tally.nodes) - heard - tally.failed
        _, least = search.best(tally)
        if least >= quorum:
            return Verdict.WON
        if tally.without_quorum or not unheard:
            return Verdict.LOST
        # With a place in line the round hears every node: one that it does not hear may have granted, and then needs a
        # rollback.
        if self._has_ticket or least + unheard >= quorum or heard < quorum:
            return Verdict.PENDING
        # With the nodes heard so far these slots can't be won, but perhaps others; if not, hear the rest.
        hopeless = heard - _full(tally) + unheard < quorum
        return Verdict.LOST if hopeless or search.choose(tally) else Verdict.PENDING

    @property
    def _has_ticket(self) -> bool:
        return self._line is not None and self._line.has_ticket

    def adapt(self, tally: Tally) -> bool:
        search, asked = self._search, tally.sent.bit_count()
        if search.is_outdated:
            # A grant counts only under the limit of its round.
            self.must_renumber = tally.refused < asked
        else:
            # A node that has not answered may execute this ask after the next one, over an abandoned connection. Unless
            # it is a first try, the node might then drop slots that it has granted since.
            self.must_renumber = (search.is_exact or self._has_ticket) and tally.refused + tally.granted < asked
        return search.exchange(tally)

    def may_queue(self, tally: Tally) -> bool:  # noqa: ARG002  (a ticket decides the order)
        return True

    def queued(self) -> None:
        self._search.widen()

    def is_split(self, tally: Tally) -> bool:
        """Return whether fewer nodes than a quorum refused for lack of room: then most likely no wake-up would come.

        They may also have told too few tickets to take a place in the line, and without a place none comes at all.
        The vote is also split if all granted slots are reserved: then no node knows enough taken slots to refuse. That
        ends once holds on bare majorities have been filled up.
        """
        return _full(tally) < tally.quorum

    def given_back(self) -> tuple[Arg, ...]:
        return () if self._line is None else self._line.given_back(self._request.holds)

    def hold(self, *terms: Any) -> HoldState:
        state, tally = super().hold(*terms), terms[-1]
        assert isinstance(state, PermitState), "the hold that comes of slots"
        search, limit = self._search, self._limit
        if tally.refused:
            self._hear(tally)
        else:
            self.contested = False
        search.note_won()
        state.grant(search.won(tally), limit)
        limit.prove(search.version)
        if search.tells and search.version == limit.version and search.is_within(tally):
            limit.lowered = False
        return state

    # Being refused.

    def refusal(self, tally: Tally) -> RedsyncError | None:
        """Learn the limit; return the error to raise if the claim can never succeed.

        It can't if nodes and programs have different limits, if there are fewer permits than the claim wants, or if the
        key is in use for something else.
        """
        others, limit, request = self._hear(tally), self._limit, self._request
        if request.holds > limit.permits:
            resized = f"semaphore {request.name!r} was resized to {limit.permits} permits"
            return ConfigurationError(f"{resized}: {request.holds} at once can't be acquired")
        if len(others) > len(tally.nodes) - tally.quorum:
            return limit.differs(request.name, others[0])
        return type_error(request.name, tally, limit.noun)

    def _hear(self, tally: Tally) -> list[Limit]:
        """Learn the newest limit that nodes told; return those that contradict it, of our version or another kind."""
        limit, before = self._limit, self._limit.version
        differs = [refusal for refusal in told(tally) if refusal.reason == OTHER_LIMIT]
        others = [refusal.limit for refusal in differs if refusal.limit is not None]
        alike = [other for other in others if other.per_us == limit.per_us]
        # A node that replies with no limit, or an older one, refuses ours as void.
        void = len(differs) - len(others) + sum(other.version < before for other in alike)
        if void > len(tally.nodes) - tally.quorum and before == self._search.version:
            limit.forget()
        for other in alike:
            limit.learn(other.version, other.permits)
        others = [other for other in others if other.per_us != limit.per_us]
        if limit.version == before:
            others += [other for other in alike if other.version == before]
        self.contested = bool(others)
        return others


class WindowClaim(SlotClaim):
    """Slots of a rate limiter: they are never held, renewed or released; they expire automatically.

    Attributes:
        settled: Bit set of the nodes that were known, when the winning round was over, to keep other slots, or none.
        kept_until: The instant until which nodes must keep the slots that were won, seconds on the driver's clock.
    """

    def __init__(self, session: Session, request: AcquireRequest, limit: Limit, window: Window) -> None:
        super().__init__(session, request, limit)
        self._window = window
        self._useful = self._telling = self._slowest = self._slowest_telling = 0.0
        self._counts_until = self.kept_until = 0.0
        self.settled = 0
        self.guard, self.round_timeout = window.guard, window.round_timeout

    @property
    def _memory(self) -> Arg:
        return self._session.processes.guard(milliseconds(self.guard)) if self.guard else 0

    def _new_line(self, waiting: Waiting) -> SlotLine:
        return WindowLine(waiting, self._window, self._limit)

    def ask(self, claim: bytes, place: tuple[Arg, ...]) -> Command:
        self.lease, self._useful, self._telling = self._window.terms(self._slowest, self._slowest_telling)
        return super().ask(claim, place)

    def look_after(self, tally: Tally, random: float) -> float:  # noqa: ARG002  (nodes tell each waiter another time)
        """Return in how many seconds to ask, so that the ask arrives when the slots run out.

        Nodes counted from its arrival there, and the next one needs about as long. A little too early costs one more
        ask; each instant too late is lost to the rate.
        """
        return max(time_left(tally) - (tally.at - tally.sent_at), 0.0)

    def valid_until(self, tally: Tally) -> float:  # noqa: ARG002  (`is_settled` has read it)
        """Return until when a win in that round counts as a success."""
        return self._counts_until

    def is_settled(self, tally: Tally) -> bool:
        """Return whether nodes need to hear nothing before the round counts as a success, or it comes too late for one.

        They do if they may keep other slots, a place in the line, or these slots for too long; or if late votes have
        shown that of the latest success before.
        """
        window = self._window
        took = tally.at - tally.sent_at
        window.note(took)
        late = took >= self._useful
        self._counts_until = tally.at if late else tally.at + self._telling
        self.kept_until = tally.at + window.needed(self._telling)
        self.settled = mismatched(tally.all_votes, self._search.won(tally))
        queued = self._line is not None and self._line.taken
        if late:
            return True
        self.must_renumber = bool(queued or self.settled) or window.is_long(self._useful, took, self._telling)
        return not (self.must_renumber or (window.latest is not None and window.latest.is_mistaken(tally.at)))

    def settle(self, tally: Tally, claim: bytes, timeout_at: Callable[[float], float]) -> Steps[Settlement]:  # noqa: ARG002
        """Tell nodes, and look at the clock again: the round counts if that was quick enough."""
        window, request = self._window, self._request
        before, window.latest = window.latest, None
        if self.must_renumber:
            # A node that hangs, or to which a rollback that restores the place is pending, would keep the place of a
            # waiter that has been served. So this stays pending for as long as the place lasts.
            queued = self._line is not None and self._line.taken
            until = tally.sent_at + self.round_timeout + max(self.lease, window.place_kept)
            message = settlement(request.keys, claim, self._search.won(tally), self.kept_until - tally.at)
            yield from tell(Tell(message, request.owner, self._session.all_nodes if queued else 0, until))
        if before is not None and before.is_mistaken(tally.at):
            # Votes that came after the verdict are known only now.
            state = before.state
            message = settlement(state.keys, state.claim, state.slots, before.until - tally.at)
            yield from tell(Tell(message, state.owner))
        at = (yield from wait(Wait(tally.at))).at
        took = at - tally.at
        if not self._slowest_telling:
            # A process that was paused once is most likely quick the next time. If it is not, that is how slow it is.
            took = min(took, max(self._telling, window.spare / 2))
        self._slowest_telling = took
        window.note_telling(took)
        return Settlement(tally, at)

    def insist(self, tally: Tally) -> bool:
        """Ask for the same slots once more: the nodes have granted them, but must keep them longer."""
        self._slowest = max(self._slowest, tally.at - tally.sent_at)
        # The round after the first telling that was slow may have had too little time for the next one.
        return self._search.insist(tally, more=1 if self._slowest_telling else 0)

    def take_up(self, state: HoldState) -> None:
        """Do nothing: permits of a rate limiter are not held."""


def _full(tally: Tally) -> int:
    """Return how many nodes refused for lack of room."""
    return sum(refusal.reason == FULL for refusal in told(tally))
