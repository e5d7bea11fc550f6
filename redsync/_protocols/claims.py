"""Claims: what one acquire asks nodes for. A whole lock here; with a token in `tokens`; slots in `slot_claims`.

The acquiring loop (`acquiring`) knows the interface of `Claim` alone; `places` decide how one waits. Each acquire has a
claim object of its own, and asks with it as often as it must.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from redsync._core.effects import Arg, Command, Steps
from redsync._core.holds import HoldState
from redsync._core.quorum import Judge, Tally, Verdict
from redsync._core.runner import Session
from redsync._protocols.acquire_requests import AcquireRequest
from redsync._protocols.lease import milliseconds
from redsync._protocols.places import PLACE_KEPT, Place, Waiting
from redsync._protocols.rounds import most_refusals, type_error
from redsync.exceptions import RedsyncError

__all__ = ["Claim", "Settlement", "listen"]

_SHORTEST_HANDED = 1.0
"""Seconds of the shortest lease with which one is handed a lock: it must be renewed before half of it is over."""


class Settlement(NamedTuple):
    """What became of a round that was won, but did not count yet.

    Attributes:
        tally: The round that was won, if it counts now; else the round that failed to make it count.
        at: The instant at which that was known, seconds on the driver's clock.
    """

    tally: Tally
    at: float


class Claim:
    """A whole lock, as one acquire claims it.

    Attributes:
        lease: Seconds for which nodes shall keep what they are asked for now.
        guard: For how many seconds a node must have remembered everything to grant.
        round_timeout: How long a round may wait for nodes, in seconds.
        decide: Replaces the plain count of votes, see `Tally`.
        spread: Seconds over which those who wait for one holder spread their looks when its time is up.
    """

    decide: Callable[[Tally], Verdict] | None = None
    spread = 0.02
    _hold_class = HoldState

    def __init__(self, session: Session, request: AcquireRequest) -> None:
        timing = session.timing
        self._session = session
        self._request = request
        self.lease = timing.lease if request.lease is None else request.lease
        self.guard = timing.guard(self.lease)
        self.round_timeout = timing.round_timeout(self.lease)
        self._memory: Arg = session.processes.guard(milliseconds(self.guard)) if self.guard else 0
        self._longest = math.inf if request.max_hold is None else request.max_hold
        self._read: Judge

    # Asking.

    def place(self, started: float) -> Place:
        """Return the place of an acquire that begins at that instant."""
        request = self._request
        waits = request.timeout != 0
        marks = self._session.marks if self._handed_over else None
        kept = min(PLACE_KEPT, self.lease)
        place = self._new_place(Waiting(request.owner, waits, request.crowded and waits, marks, kept, started))
        self._read = place.read
        return place

    def _new_place(self, waiting: Waiting) -> Place:
        return self._request.queue(waiting)

    @property
    def _handed_over(self) -> bool:
        """Whether nodes may hand it over."""
        # It lasts as long as a place then: no longer than was asked for, and the watchdog lengthens it.
        request = self._request
        return request.lease is None and request.holds == 1 and self.lease >= _SHORTEST_HANDED

    def begin(self) -> None:
        """Begin another try: forget what the one before has found out."""

    def ask(self, claim: bytes, place: tuple[Arg, ...]) -> Command:
        """Return the command of the next round; `place`: its further arguments that ask for a place, if it does."""
        request = self._request
        keys = request.keys.all if place or request.kind.mode else (request.keys.lock,)
        args = (claim, request.holds, milliseconds(self.lease), self._memory)
        return Command(request.kind.acquire, keys, args + place)

    @property
    def judge(self) -> Judge:
        """Reads the replies to the latest ask, see `quorum.Judge`.

        A hold keeps it with its votes. So it must not lead back to the hold: only the collector would free both.
        """
        return self._read

    # What a round says.

    def valid_until(self, tally: Tally) -> float:
        """Return until when what was won may be believed."""
        return min(self._session.timing.valid_until(tally.sent_at, self.lease), tally.sent_at + self._longest)

    def is_settled(self, tally: Tally) -> bool:  # noqa: ARG002
        """Record a round that was won; return whether it counts as it is."""
        return True

    def settle(self, tally: Tally, claim: bytes, timeout_at: Callable[[float], float]) -> Steps[Settlement]:  # noqa: ARG002
        """Make a round count that was won; `timeout_at(now)`: for how many seconds a further round may wait."""
        yield from ()
        return Settlement(tally, tally.at)

    def refusal(self, tally: Tally) -> RedsyncError | None:
        """Return the error to raise if what the nodes said rules the claim out for good."""
        return type_error(self._request.name, tally)

    def insist(self, tally: Tally) -> bool:  # noqa: ARG002
        """Record a round that was won too late to count; return whether to ask for the same at once."""
        return False

    def adapt(self, tally: Tally) -> bool:  # noqa: ARG002
        """Record a round that was not won; return whether to ask for something else at once."""
        return False

    def may_queue(self, tally: Tally) -> bool:
        """Whether it makes sense to take a place at once."""
        return not self.is_split(tally)

    def queued(self) -> None:
        """Record that the next round asks for a place, unlike the one before."""

    def is_split(self, tally: Tally) -> bool:
        """Whether no other owner can be seen to have a quorum: then waiting for its release would most likely be vain.

        An owner's claims on nodes that failed are not seen. To take a holder for a split vote costs one ask too many.
        To take a split vote for a holder is worse: all contenders would sleep, with nobody left to wake them.
        """
        return most_refusals(tally) + tally.choices.count(None) < tally.quorum

    def given_back(self) -> tuple[Arg, ...]:
        """Return the arguments by which a rollback restores the place; empty if nodes keep it anyway."""
        return ()

    # The hold.

    def hold(  # noqa: PLR0917  (keywords would cost the hot path half a microsecond)
        self, claim: bytes, since: float, valid_until: float, renewal_at: float, touched: int, kept_until: float
    ) -> HoldState:
        """Return the hold; arguments as for `HoldState`; `since`: the instant from which `max_hold` counts."""
        request = self._request
        return self._hold_class(
            request.name,
            request.kind,
            request.keys,
            request.owner,
            claim,
            request.holds,
            self.lease,
            valid_until,
            renewal_at,
            since + self._longest,
            touched,
            kept_until,
        )

    def note_won(self, state: HoldState, tally: Tally) -> None:
        """Record in a hold what the round that won it has told."""

    def take_up(self, state: HoldState) -> None:
        """Add it to the client's holds: from now on it is renewed, and must be given back."""
        listen(state, self._request)
        self._session.holds.add(state)


def listen(state: HoldState, request: AcquireRequest) -> None:
    """Register the request's `on_lost` with a hold."""
    if request.on_lost is not None:
        state.on_lost.append(request.on_lost)
