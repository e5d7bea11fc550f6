"""Claims: what one acquire asks nodes for. A whole lock here; with a token in `tokens`; slots in `slot_claims`.

The acquiring loop (`acquiring`) knows only the interface of `Claim`; `places` decide how an acquire waits. Each acquire
has its own claim object, and uses it for all its asks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from redsync._core.effects import Arg, Command, Steps
from redsync._core.holds import HoldState
from redsync._core.quorum import Judge, Tally, Verdict
from redsync._core.runner import Session
from redsync._core.timing import milliseconds
from redsync._protocols.acquire_requests import AcquireRequest
from redsync._protocols.places import PLACE_KEPT, Arrival, Place, Waiting
from redsync._protocols.rounds import most_refusals, time_left, type_error
from redsync.exceptions import RedsyncError

__all__ = ["Claim", "Settlement", "register_on_lost"]

_SHORTEST_HANDED = 1.0
"""The shortest lease, in seconds, that the watchdog lengthens after a hand-over: half of it must suffice for that."""

_LEFT_TO_RENEW, _LEFT_TO_USE = 0.5, 0.9
"""The part of its time that a claim handed over must have left: so that the watchdog can lengthen it; or, if the
acquire has its own lease, so that this is about as long as its owner expects.
"""

_SPREAD = 0.02
"""Seconds over which the waiters for a holder spread their looks once its lease is over."""


class Settlement(NamedTuple):
    """The result of settling a round that was won, but did not count yet.

    Attributes:
        tally: The round that was won, if it counts now; else the round that failed to make it count.
        at: The instant at which the result was known, seconds on the driver's clock.
    """

    tally: Tally
    at: float


class Claim:
    """A whole lock, as one acquire claims it.

    Attributes:
        lease: Seconds for which nodes keep the claim of the next ask.
        guard: Seconds for which a node must have remembered everything to grant.
        round_timeout: The longest time that a round waits for nodes, in seconds.
        renewed_after: Seconds after the winning ask when the watchdog renews the hold; infinity if it does not.
        decide: Replaces the plain count of votes, see `Tally`.
        must_renumber: True if the next ask, though it comes at once, needs another claim: a message about this one may
            reach a node after it.
    """

    decide: Callable[[Tally], Verdict] | None = None
    must_renumber = False
    _hold_class = HoldState
    _read: Judge = staticmethod(Arrival.read)

    def __init__(self, session: Session, request: AcquireRequest) -> None:
        self._session = session
        self._request = request
        known = request.kind.noun, request.keys.lock, request.holds, request.lease, None
        self._forms = forms = session.prepared.forms[known]
        terms = forms.terms
        self.lease = terms.lease
        self.guard = terms.guard
        self.round_timeout = terms.round_timeout
        self.renewed_after = terms.renewed_after

    # Asking.

    def first_place(self, started: float) -> Place | None:
        """Return the place of an acquire that begins at that instant; None if it needs one only after a refusal."""
        request = self._request
        at_once = request.keys.hold in self._session.crowds.expected and request.timeout != 0
        # A first try that asks for no place by arrival does not depend on the place object.
        return None if request.queue is Arrival and not at_once else self.place(started, at_once=at_once)

    def place(self, started: float, *, at_once: bool) -> Place:
        """Return the place of an acquire that began at that instant; `at_once`: the first try asks for it."""
        request, kept = self._request, min(PLACE_KEPT, self.lease)
        waits, marks = request.timeout != 0, self._session.marks
        place = self._new_place(Waiting(request.owner, waits, at_once, marks, kept, self._lease_handed, started))
        self._read = place.read
        return place

    def _new_place(self, waiting: Waiting) -> Place:
        return self._request.queue(waiting)

    @property
    def _lease_handed(self) -> float:
        """Seconds for which nodes keep a claim that they hand over; 0.0: as long as the place."""
        # Unless the acquire has its own lease, the watchdog lengthens the claim. So a waiter that is gone blocks others
        # no longer than its place would.
        return self._request.lease or 0.0

    @property
    def least_left(self) -> float:
        """The part of its time that a claim handed over must have left to be the hold; else the acquire asks again.

        Infinite if it asks again in any case, because its hold takes more than the claim. Then it finds its claims.
        """
        request = self._request
        if request.holds > 1 or (request.renewed and self.lease < _SHORTEST_HANDED):
            return math.inf
        return _LEFT_TO_RENEW if request.renewed else _LEFT_TO_USE

    def begin(self) -> None:
        """Begin another try after a sleep: forget the findings of the previous one."""

    def ask(self, claim: bytes, place: tuple[Arg, ...]) -> Command:
        """Return the command of the next round; `place`: the arguments that ask for a place, if any."""
        return self._command(claim, place) if place else self._plain_command(claim)

    def _plain_command(self, claim: bytes) -> Command:
        """Return the usual command."""
        ask = self._forms.ask
        if ask is None:
            request = self._request
            keys = request.keys.all if request.kind.mode else request.keys.held
            args = request.holds, self._forms.terms.lease_ms, self._memory
            self._forms.ask = ask = self._session.prepared.spell(request.kind.acquire, keys, args)
        return ask.command(claim)

    def _command(self, claim: bytes, place: tuple[Arg, ...]) -> Command:
        request = self._request
        keys = request.keys.all if place or request.kind.mode else (request.keys.lock,)
        args = (claim, request.holds, milliseconds(self.lease), self._memory)
        return Command(request.kind.acquire, keys, args + place)

    @property
    def _memory(self) -> Arg:
        """The guard as an argument of scripts."""
        return self._forms.terms.memory

    @property
    def judge(self) -> Judge:
        """Reads the replies to the latest ask, see `quorum.Judge`.

        A hold keeps it with its votes. So it must not refer to the hold: only the cycle collector would free both.
        """
        return self._read

    # After a round.

    def valid_until(self, tally: Tally) -> float:
        """Return until when a hold that the round won may be believed."""
        trusted, longest = self._forms.terms.trusted, self._request.max_hold
        return tally.sent_at + (trusted if longest is None or trusted < longest else longest)

    def is_settled(self, tally: Tally) -> bool:  # noqa: ARG002
        """Record a won round; return whether it counts as it is."""
        return True

    def settle(self, tally: Tally, claim: bytes, timeout_at: Callable[[float], float]) -> Steps[Settlement]:  # noqa: ARG002
        """Make a won round count; `timeout_at(now)`: for how many seconds a further round may wait."""
        yield from ()
        return Settlement(tally, tally.at)

    def refusal(self, tally: Tally) -> RedsyncError | None:
        """Return the error to raise if the nodes' answers rule the claim out permanently, else None."""
        return type_error(self._request.name, tally)

    def insist(self, tally: Tally) -> bool:  # noqa: ARG002
        """Record a round that was won too late; return whether to ask for the same at once."""
        return False

    def adapt(self, tally: Tally) -> bool:  # noqa: ARG002
        """Record a round that was not won; return whether to ask for something else at once."""
        return False

    def may_queue(self, tally: Tally) -> bool:
        """Return whether it makes sense to queue at once."""
        return not self.is_split(tally)

    def queued(self) -> None:
        """Record that from the next round on the acquire asks for a place."""

    def is_split(self, tally: Tally) -> bool:
        """Return whether no other owner visibly has a quorum: then there is most likely no release to wait for.

        Claims on nodes that failed are invisible. To mistake a holder for a split vote costs one ask too many. The
        opposite mistake is worse: all contenders would sleep, with no release to wake them.
        """
        return most_refusals(tally) + tally.unheard < tally.quorum

    def look_after(self, tally: Tally, random: float) -> float:
        """Return in how many seconds after a refused round to look whether the claims in the way have run out."""
        return time_left(tally) + 0.001 + _SPREAD * random

    def given_back(self) -> tuple[Arg, ...]:
        """Return the arguments by which a rollback restores the place; empty if nodes keep it anyway."""
        return ()

    # The hold.

    def hold(  # noqa: PLR0917  (keywords would cost the hot path half a microsecond)
        self,
        claim: bytes,
        since: float,
        valid_until: float,
        renew_at: float,
        touched: int,
        kept_until: float,
        tally: Tally | None,  # noqa: ARG002  (it tells only claims of slots which ones they are)
    ) -> HoldState:
        """Return the hold; arguments as for `HoldState`, but `since` is when it was asked for or handed over.

        `tally` is the round that won it; None if nodes handed it over.
        """
        request = self._request
        return self._hold_class(
            request.name,
            request.kind,
            request.keys,
            request.owner,
            claim,
            request.holds,
            self._forms,
            valid_until,
            renew_at,
            math.inf if request.max_hold is None else since + request.max_hold,
            touched,
            kept_until,
            since,
        )

    def begin_hold(self, state: HoldState, since: float, valid_until: float) -> None:
        """Make a hold that was made in advance begin at that instant."""
        state.since = since
        if (longest := self._request.max_hold) is not None:
            state.ends_at = since + longest
            state.valid_until = min(valid_until, state.ends_at)

    def take_up(self, state: HoldState) -> None:
        """Add the hold to the client's holds: from now on the watchdog renews it, and it must be released."""
        if self._request.on_lost is not None:
            register_on_lost(state, self._request)
        self._session.holds.add(state)


def register_on_lost(state: HoldState, request: AcquireRequest) -> None:
    """Register the request's `on_lost` with a hold."""
    if request.on_lost is not None:
        state.on_lost.append(request.on_lost)
