"""Claims: what one acquire asks nodes for. A whole lock here; with a token in `fenced_lock`; slots in `slot_claims`.

The acquiring loop (`acquiring`) knows only the interface of `Claim`; `queue_policies` decide how an acquire waits. Each
acquire has its own claim object, and uses it for all its asks. Its *request* tells what to claim and how, and records
the success.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from redsync._core.client_records import is_ours, owner_of
from redsync._core.effects import Steps
from redsync._core.holds import HoldState, Owner
from redsync._core.keys import LockKeys
from redsync._core.quorum import ReplyParser, Tally, Verdict
from redsync._core.scripts import Arg, ClaimKind, Command
from redsync._core.session import Session
from redsync._core.text import one_line
from redsync._core.timing import milliseconds
from redsync._protocols.answers import most_refusals, read_answer, refusals_of_owners, time_left, type_error
from redsync._protocols.queue_policies import PLACE_KEPT, QueuePolicy
from redsync.exceptions import RedsyncError

__all__ = ["LEFT_TO_USE", "LOOK", "AcquireRequest", "Claim"]

_SHORTEST_HANDED = 1.0
"""The shortest lease, in seconds, that the watchdog lengthens after a hand-over: half of it must suffice for that."""

_LEFT_TO_RENEW, LEFT_TO_USE = 0.5, 0.9
"""The part of its time that a claim handed over must have left: so that the watchdog can lengthen it; or, if the
acquire has its own lease, so that this is about as long as its owner expects.
"""

LOOK = 0.25
"""The longest unit of time to which first renewals are rounded: nodes keep a hand-over for 3 s."""

_SPREAD = 0.02
"""Seconds over which the waiters for a holder spread their looks once its lease is over."""

_POLL, _POLL_SPREAD = 0.02, 0.03
"""Seconds between looks while a claim of another library is in the way: its release wakes no waiter of ours."""


@dataclass(slots=True, eq=False, kw_only=True)
class AcquireRequest:
    """The arguments of one acquire, and its success.

    An interruption may strike when the protocol has ended and its result is on the way. So the acquire writes `state`
    in the very step in which it counts the claim: between the two stores, and until the protocol has ended, the
    interpreter does not check for signals. An interrupted caller sees what to undo.

    Attributes:
        name: The lock's name, for messages.
        kind: The kind of claim.
        keys: The lock's keys.
        owner: The owner that acquires.
        lease: Seconds for which nodes keep the claim; None for the client's lease, renewed by the watchdog.
        timeout: Seconds to wait; 0.0 for one try, None for no limit.
        max_hold: Seconds after which the hold ends whatever the renewals say; None for no limit.
        on_lost: The callback for a loss of the hold.
        holds: The number of acquisitions to make at once.
        for_with: True if a `with` begins with it.
        queue: Makes the policy by which the acquire waits for a lock that others hold; None: that of its kind.
        state: The hold that was acquired; None if there is none.
        nested: True if its owner had that hold before.
        holder: The owner that was in the way at the last try, as text; None if it is not known.
    """

    name: str | bytes
    kind: ClaimKind
    keys: LockKeys
    owner: Owner
    lease: float | None = None
    timeout: float | None = None
    max_hold: float | None = None
    on_lost: Callable[[HoldState], object] | None = None
    holds: int = 1
    for_with: bool = False
    queue: Callable[..., QueuePolicy] | None = None
    state: HoldState | None = None
    nested: bool = False
    holder: str | None = None

    def deadline(self, started: float) -> float:
        """Return the deadline of an acquire that began at `started`."""
        return math.inf if self.timeout is None else started + self.timeout


class Claim:
    """A whole lock, as one acquire claims it.

    Attributes:
        session: The state that the client's synchronizers share.
        request: The arguments of the acquire.
        lease: Seconds for which nodes keep the claim of the next ask.
        guard: Seconds for which a node must have remembered everything to grant.
        round_timeout: The longest time that a round waits for nodes, in seconds.
        place_kept: Seconds for which nodes keep a place in the queue.
        parse: Reads the replies to an ask, see `quorum.ReplyParser`.
        policy: How the acquire waits.
        expects_others: True if the acquire may wait, and the client's latest one of that lock met others.
        decide: Replaces the plain count of votes, see `Tally`.
        needs_new_claim: True if the next ask needs another claim, though it comes at once: a message about the present
            claim may reach a node after that ask.
    """

    decide: Callable[[Tally], Verdict] | None = None
    needs_new_claim = False
    parse: ReplyParser = staticmethod(read_answer)
    _hold_class = HoldState
    policy: QueuePolicy
    expects_others: bool

    def __init__(self, session: Session, request: AcquireRequest) -> None:
        self.session = session
        self.request = request
        timing = session.timing
        self.lease = lease = timing.lease if request.lease is None else request.lease
        self.guard = timing.guard(lease)
        self.round_timeout = timing.round_timeout(lease)
        self.place_kept = min(PLACE_KEPT, lease)

    # Asking.

    def start(self, now: float) -> None:
        """Begin to ask at that instant."""
        session, request = self.session, self.request
        waits = request.timeout != 0
        self.begin()
        self.expects_others = waits and request.keys.lock in session.contended
        self.policy = (request.queue or request.kind.queue)(
            owner=request.owner,
            waits=waits,
            asks=self.expects_others,
            ask_ids=session.ask_ids,
            kept=self.place_kept,
            # Unless the acquire has its own lease, the watchdog lengthens the claim. So a waiter that is gone blocks
            # others no longer than its place would.
            lease=request.lease or 0.0,
            started=now,
        )

    @property
    def least_left(self) -> float:
        """The part of its time that a claim handed over must have left to be the hold; else the acquire asks again.

        Infinite if it asks again in any case, because the hold needs more than the claim. That ask finds its claims.
        """
        if self.request.lease is not None:
            return LEFT_TO_USE
        return _LEFT_TO_RENEW if self.lease >= _SHORTEST_HANDED else math.inf

    def begin(self) -> None:
        """Begin another try after a sleep: forget the findings of the previous one."""

    def ask(self, claim: bytes, place: tuple[Arg, ...]) -> Command:
        """Return the command of the next round; `place`: the arguments that ask for a place, if any."""
        request = self.request
        keys = request.keys.all if place or request.kind.mode else request.keys.held
        args = claim, request.kind.hold_count(request.holds), milliseconds(self.lease), self._memory, *place
        return Command(request.kind.acquire, keys, args)

    @property
    def _memory(self) -> Arg:
        """The guard as an argument of scripts; 0 if there is none."""
        return self.session.processes.guard(milliseconds(self.guard)) if self.guard else 0

    # After a round.

    def valid_until(self, tally: Tally) -> float:
        """Return until when a hold that the round won may be believed."""
        until, longest = self.session.timing.valid_until(tally.sent_at, self.lease), self.request.max_hold
        return until if longest is None else min(until, tally.sent_at + longest)

    def is_confirmed(self, tally: Tally) -> bool:  # noqa: ARG002
        """Record a won round; return whether it counts as it is."""
        return True

    def confirm(self, tally: Tally, claim: bytes, timeout_at: Callable[[float], float]) -> Steps[tuple[Tally, float]]:  # noqa: ARG002
        """Make a won round count; return it, or the round that failed to, and the instant at which that was known.

        `timeout_at(now)` returns for how many seconds a further round may wait.
        """
        yield from ()
        return tally, tally.at

    def refusal(self, tally: Tally) -> RedsyncError | None:
        """Return the error to raise if the nodes' answers rule the claim out permanently, else None."""
        return type_error(self.request.name, tally, self.request.kind.label)

    def asks_again(self, tally: Tally) -> bool:  # noqa: ARG002
        """Record a round that was not won, or too late; return whether to ask for something else, or for longer."""
        return False

    def may_queue(self, tally: Tally) -> bool:
        """Return whether to ask for a place at once; else only with the next try."""
        return not self.is_split(tally)

    def queue(self, tally: Tally) -> bool:
        """Ask for a place with the next try, if this round has told enough to know which; return whether it has."""
        return self.policy.learn(tally)

    def is_split(self, tally: Tally) -> bool:
        """Return whether no other owner visibly has a quorum: then there is most likely no release to wait for.

        Claims on nodes that failed are invisible. To mistake a holder for a split vote costs asks, at growing
        pauses. The opposite mistake is worse: all contenders would sleep, with no release to wake them.
        """
        return most_refusals(tally) + tally.unheard < tally.quorum

    def holder(self, tally: Tally) -> str | None:
        """Return the owner that caused most refusals, as one short line; None if it is not known."""
        holders = Counter(refusal.holder for refusal in tally.refusals if refusal.holder)
        if not holders:
            return None
        claim = holders.most_common(1)[0][0]
        return one_line(owner_of(claim) if self.request.kind.is_threads else claim.decode("utf-8", "backslashreplace"))

    def seconds_to_look(self, tally: Tally, random: float) -> float:
        """Return in how many seconds after a refused round to look whether the claims in the way have run out."""
        kind = self.request.kind
        if kind.shares_names and not all(is_ours(refusal.holder) for refusal in refusals_of_owners(tally)):
            # Far back in the queue seldom: each waiter would ask all nodes 30 times a second.
            ahead: int = max(refusal.ahead for refusal in refusals_of_owners(tally))
            return (_POLL + _POLL_SPREAD * random) * (1 + max(ahead, 0))
        return time_left(tally) + 0.001 + _SPREAD * random

    def place_to_restore(self) -> tuple[Arg, ...]:
        """Return the arguments by which a rollback restores the place; empty if nodes keep it anyway."""
        return ()

    # The hold.

    def begin_hold(
        self,
        claim: bytes,
        *,
        since: float,
        valid_until: float,
        may_keep: int,
        won: Tally | None = None,
    ) -> HoldState:
        """Return the hold that a round has won, or that nodes have handed over; from now on it is held.

        It is believed between two instants; nodes in `may_keep` may keep it.
        """
        request, renew_at = self.request, math.inf
        if renewed := request.lease is None:
            # Nodes keep a hand-over that the watchdog is to lengthen only for as long as the place. Rounded, so that
            # ten thousand grants don't wake the watchdog ten thousand times.
            unit = min(self.round_timeout, LOOK)
            renew_at = min((since // unit + 2) * unit, (since + valid_until) / 2)
        ends_at = math.inf if request.max_hold is None else since + request.max_hold
        state = self._hold_class(
            name=request.name,
            kind=request.kind,
            keys=request.keys,
            owner=request.owner,
            claim=claim,
            count=request.holds,
            lease=self.lease,
            valid_until=min(valid_until, ends_at),
            renew_at=renew_at,
            ends_at=ends_at,
            may_keep=may_keep,
            since=since,
            renewed=renewed,
        )
        self.complete(state, won)
        self.session.answered = True
        # First: an interruption from here on must find the hold, to drop it.
        request.state = state
        self.register(state)
        return state

    def complete(self, state: HoldState, won: Tally | None) -> None:
        """Add what is special about the hold of such a claim; `won` is None if nodes handed it over."""

    def register(self, state: HoldState) -> None:
        """Add the hold to the client's holds: from now on the watchdog renews it, and it must be released."""
        if self.request.on_lost is not None:
            state.on_lost.append(self.request.on_lost)
        self.session.holds.add(state)
