"""A new claim: asking for it, waiting for it, undoing what came of a try. Shared by all that is owned by one at a time.

Whatever the reason a round was not won for, its claims are undone on all nodes, unless all that were asked have
refused, or the same is asked for again at once, now with a place in the queue. Then:

* *without quorum* (too many nodes failed): an error at once when not blocking; else try again, with growing pauses,
  until the deadline, and without a place that others would have to wait for;
* *split vote* (contenders hold a minority each, so nobody can win): try again after a short random pause that grows;
* *held*: sleep until nodes hand the lock over or wake us, the holder's time is up, or a jittered second has passed.
  Each try queues in the same atomic step in which a node refuses it, so no release slips in between try and sleep.

**Handed over.** A node that frees a lock claims it for the head of the queue in the same step, for as long as it would
have kept the place, and says so with the *mark* of the ask that it answers. A quorum of these are as good as votes, and
are believed from the instant of that ask. An undo may take away what was handed over since, so after one nothing counts
that is handed over until the next ask, which has another mark. It is taken up only while half of its time is left, for
the watchdog has to lengthen it; else we ask, and find our claims there.

**Each try after an undo is a claim of its own**, with a number that no try before had. So an undo that comes late, over
a connection that was given up, finds nothing of what was asked for since. The place in the queue goes on: it belongs to
the owner. A try without an undo before it repeats its claim, and finds it where it was granted.

Who is served first is a matter of the place, see `places`; whether grants carry tokens, of the kind, see `tokens`.
"""

from __future__ import annotations

import math

from redsync._core.effects import Broadcast, Command, Steps, Wait, broadcast, tell, wait
from redsync._core.holds import HoldState
from redsync._core.quorum import Tally
from redsync._core.runner import Session
from redsync._core.timing import retry_delay
from redsync._protocols.demands import Demand
from redsync._protocols.lease import abandon, milliseconds, renew_at
from redsync._protocols.lining_up import call_forward, crowd_of, line_up
from redsync._protocols.places import PLACE_KEPT, SPREAD, Arrival, Nowhere, Place, Ticket, Waiting
from redsync._protocols.rounds import is_granted, most_refusals, no_quorum, refusals, type_error
from redsync.exceptions import RedsyncError

__all__ = ["acquire_new", "listen"]

_GRACE = 0.003
"""Seconds to wait for more nodes' wake-ups after the first: a release reaches the nodes one after the other."""

_CROWDED = 0.001
"""Seconds in the queue after which a lock counts as crowded: the next acquire asks for a place with its first try."""

_SHORTEST_HANDED = 1.0
"""Seconds of the shortest lease with which one is handed a lock: it must be renewed before half of it is over."""

_LAST_TRY = 0.03
"""Seconds that a try may take when the caller's time is already up, so that timeouts are kept within 50 ms."""


def _place(session: Session, demand: Demand, lease: float, started: float) -> Place:
    if demand.bid is not None:
        if demand.bid.window is None:
            demand.bid.kept = min(PLACE_KEPT, lease)
        return demand.bid
    if demand.backoff is not None:
        return Nowhere(demand.backoff)
    waits = demand.timeout != 0
    crowded = demand.crowded and waits
    untold = demand.fence is not None  # a hand-over tells no token
    # What is handed over lasts as long as a place: no longer than was asked for, and the watchdog lengthens it.
    handed = not untold and demand.lease is None and demand.holds == 1 and lease >= _SHORTEST_HANDED
    waiting = Waiting(demand.owner, waits, crowded, session.marks if handed else None, min(PLACE_KEPT, lease))
    return Ticket(waiting) if demand.kind.by_ticket else Arrival(waiting, started)


class _Attempt:
    """What one acquire has done so far: enough to undo it at any point.

    Attributes:
        lease: Seconds that the nodes shall keep the claim.
        deadline: When the caller's timeout is over.
        fence: As the demand's.
        hurried: The latest round had less time than rounds have.
        mark: What nodes say that hand the lock over, if that counts; else None.
        state: The hold, once it was won; None again if it was not to be.
        token: Its fencing token.
    """

    __slots__ = (
        "_asked",
        "_asked_at",
        "_asking",
        "_claim",
        "_demand",
        "_doubtful",
        "_failures",
        "_guard",
        "_guard_arg",
        "_kept_until",
        "_left",
        "_place",
        "_session",
        "_splits",
        "_started",
        "_touched",
        "_tries",
        "_useful",
        "_window",
        "deadline",
        "fence",
        "hurried",
        "lease",
        "mark",
        "state",
        "token",
    )

    def __init__(self, session: Session, demand: Demand, started: float) -> None:
        self._session = session
        self._demand = demand
        self._started = started
        self._claim = demand.owner.claim(next(session.claims))
        self._touched = 0
        self._kept_until = 0.0
        self._asking = self._left = False
        self.mark: bytes | None = None
        self._asked = self._doubtful = 0
        self._asked_at = 0.0
        self.hurried = False
        self.state: HoldState | None = None
        self._failures = self._splits = self._tries = 0
        lease, timeout = demand.lease, demand.timeout
        self.lease = session.timing.lease if lease is None else lease
        self._place = _place(session, demand, self.lease, started)
        self._window = None if demand.bid is None else demand.bid.window
        self._useful = math.inf
        self._guard = session.timing.guard(self.lease) if self._window is None else self._window.guard
        # Without a guard only a token depends on what the node remembers.
        guarded = self._guard or demand.fence is not None
        self._guard_arg = session.processes.guard(milliseconds(self._guard)) if guarded else 0
        self.fence = demand.fence
        self.token: int | None = None
        self.deadline = math.inf if timeout is None else started + timeout

    @property
    def in_doubt(self) -> bool:
        """Whether a node that was asked since the last undo may have granted."""
        return self._doubtful != 0

    @property
    def wake_key(self) -> bytes | None:
        """What the nodes' wake-ups for this attempt say; None if there will be none."""
        return self._demand.owner.wire + b" " + self._demand.keys.lock if self._place.taken else None

    def ask(self, now: float) -> Broadcast:
        """Return the effect that asks all nodes for a new claim, or else for a place in the queue."""
        demand, window = self._demand, self._window
        if window is not None:
            self.lease, self._useful = window.terms()
        owner, keys, lease = demand.owner, demand.keys, self.lease
        patience = self.patience(now)
        self.hurried = patience < self._round_timeout
        self._asking, self._left = True, False
        self._tries += 1
        place = self._place.ask(now)
        self.mark, self._asked_at = self._place.mark, now
        kept = max(lease, self._place.kept) if self._place.taken else lease
        self._kept_until = max(self._kept_until, now + patience + kept)
        claim = (self._claim, demand.holds, milliseconds(lease), self._guard_arg)
        command = Command(demand.kind.acquire, keys.all if place or demand.kind.mode else (keys.lock,), claim + place)
        judge = is_granted if demand.bid is None else demand.bid.judge
        if self.fence is not None:
            command, judge = self.fence.ask(command), self.fence.judge
        return Broadcast(
            command,
            owner,
            judge,
            patience,
            self._guard,
            decide=None if demand.bid is None else demand.bid.decide,
            listen=self.wake_key,
            thorough=self._place.enough,
            late=True,
        )

    @property
    def _round_timeout(self) -> float:
        return self._session.timing.round_timeout(self.lease) if self._window is None else self._window.round_timeout

    def patience(self, now: float) -> float:
        """Return for how many seconds a round that begins now may wait for nodes."""
        usual = self._round_timeout
        return min(usual, max(self.deadline - now, _LAST_TRY)) if self._demand.timeout else usual

    def note(self, tally: Tally) -> None:
        """Take note of which nodes were asked."""
        self._asking = False
        self._touched |= tally.sent
        self._asked |= tally.sent
        # Who refuses keeps no claim of ours, also none of an earlier round.
        self._doubtful = (self._doubtful | tally.sent) & ~tally.refusers
        self._kept_until = max(self._kept_until, tally.at + self.lease)

    def suspend(self) -> bool:
        """Record that too few nodes answer, so that our place must hold up nobody; return whether to leave it now."""
        return self._place.suspend()

    def undo(self, *, leave: bool) -> Steps[None]:
        """Drop what any node may have granted, and our place in the queues if we `leave`, or if it is not settled."""
        demand = self._demand
        leave = self._place.taken and (leave or self._place.unsettled)
        # What nodes hand over until they get this is taken away again, and not to be counted.
        self.mark = None
        # A round that was interrupted may have been sent to any node.
        # Our place may be anywhere that we ever asked; our claim only where we asked for it.
        owed_to = self._session.all_nodes if self._asking else self._touched if leave else self._asked
        place = () if leave or demand.bid is None else demand.bid.place
        drop = abandon(
            demand.kind,
            demand.keys,
            demand.owner,
            self._claim,
            leave=leave,
            owed_to=owed_to,
            owed_until=self._kept_until,
        )
        if place:
            # At once or never: a node that gave the place back later would give it to one who has left.
            back = drop.command._replace(args=(*drop.command.args, *place))
            yield from tell(drop._replace(command=back, owed_to=0))
        yield from tell(drop)
        if place:
            # Nodes that were never asked keep the place too now, and are to be told when we leave it.
            self._touched = self._session.all_nodes
        # Only now: an interruption before it was sent finds all of it still to be undone.
        self._doubtful = self._asked = 0
        self._claim = demand.owner.claim(next(self._session.claims))
        self._left = leave
        if leave:
            self._place.leave()

    def begin(self, now: float) -> None:
        """Begin to wait in the nodes' queues at that instant, from the first try on."""
        if isinstance(self._place, Arrival):
            self._place.begin(now)

    def drop(self, *, settled: bool) -> Steps[None]:
        """Undo everything, also what was won, unless that is settled."""
        if settled:
            return
        # Interrupted: a claim may be on its way to any node, and a place in any queue.
        if self.state is not None:
            self._session.holds.remove(self.state)
            self.state = None
        if self._asking or self._touched:
            yield from self.undo(leave=True)

    def conclude(self, tally: Tally, refusal: RedsyncError | None, *, mute: bool, was_held: bool) -> None:
        """Return if others hold it, now that it is over; else raise."""
        if refusal is not None:
            raise refusal
        # In no time nobody can answer. Then the round before it tells whether others hold it.
        if mute and not (was_held and self.hurried):
            raise no_quorum(self._demand.name, tally, self._demand.kind.label)

    def valid_until(self, tally: Tally) -> float:
        """Return until when what was won may be believed; of a rate limiter: until when it counts."""
        if self._window is not None:
            return tally.sent_at + self._useful
        believed = self._session.timing.valid_until(tally.sent_at, self.lease)
        max_hold = self._demand.max_hold
        return believed if max_hold is None else min(believed, tally.sent_at + max_hold)

    def is_level(self, tally: Tally) -> bool:
        """Take note of the token of a round that was won; return whether a quorum stands at it."""
        assert self.fence is not None, "it is asked for tokens"
        self.token, is_level = self.fence.read(tally)
        return is_level

    def level(self, tally: Tally) -> Steps[Tally]:
        """Raise a quorum to the token; return the round that was won, or the one in which that failed."""
        self.note(tally)
        assert self.fence is not None, "it is asked for tokens"
        assert self.token is not None, "it is known"
        while True:
            written = yield from self.fence.level(self._demand.owner, self._claim, self.token, self.patience(tally.at))
            tally.at = written.at
            if written.won:
                return tally
            if not self.fence.is_absurd(self.token):
                return written
            # One node has told what no token can be; the others may be a quorum without it.
            if self.is_level(tally):
                return tally
            if self.fence.is_absurd(self.token):
                return written

    def refusal(self, tally: Tally) -> RedsyncError | None:
        """Return the error to raise if what the nodes said rules the claim out for good."""
        bid = self._demand.bid
        return type_error(self._demand.name, tally) if bid is None else bid.refusal(tally)

    def learn(self, tally: Tally, *, over: bool) -> bool:
        """Take note of a round without success; return whether to ask again at once."""
        if tally.won:
            return self._demand.bid is not None and self._demand.bid.insist(tally)
        if tally.without_quorum:
            return False
        if self._demand.bid is not None:
            return self._demand.bid.exchange(tally) or (not over and self._place.learn(tally))
        return not over and not _is_split(tally) and self._place.learn(tally)

    def sleep(self, tally: Tally, mute: bool) -> Wait:
        """Return the sleep before the next try."""
        luck = self._session.luck()
        if mute:
            self._failures += 1
            pause = retry_delay(self._failures, luck, shortest=0.02, longest=0.25)
            return Wait(self.deadline, retry_at=tally.at + pause)
        until = min(self.deadline, tally.at + self._pause(tally, luck))
        return Wait(until, self.wake_key, self._session.quorum, _GRACE, self.mark)

    def _pause(self, tally: Tally, luck: float) -> float:
        """Return how many seconds to sleep after a refusal."""
        fixed = self._place.pause(self._tries, luck)
        if fixed is not None:
            return fixed
        if _is_split(tally) if self._demand.bid is None else self._demand.bid.is_split(tally):
            # From now on each try takes a place, in the same step that refuses it. But who has just left the queue
            # comes after all who have finished queueing by then, and of them this round knows nothing.
            if not self._left:
                self._place.learn(tally)
            self._splits += 1
            return retry_delay(self._splits, luck, longest=0.05)
        self._failures = self._splits = 0
        spread = SPREAD if self._demand.bid is None else self._demand.bid.spread
        return min(_time_left(tally) + 0.001 + spread * luck, self._place.patience(tally, luck))

    def hold(self, tally: Tally) -> HoldState:
        """Take up the hold that was won."""
        session, lease, sent_at = self._session, self.lease, tally.sent_at
        # A place lasts where the round that won did not come.
        kept_until = max(self._kept_until, tally.at + lease) if self._place.taken else tally.at + lease
        renewal_at = renew_at(sent_at, lease) if self._demand.lease is None else math.inf
        state = self._state(sent_at, self.valid_until(tally), renewal_at, self._touched | tally.sent, kept_until)
        if session.nodes > session.quorum:
            # At full turns of a common clock: ten thousand grants must not wake the watchdog ten thousand times.
            turn = session.timing.round_timeout(lease)
            state.fill_at = (sent_at // turn + 2) * turn
            state.tally = tally
        state.queued = self._place.taken and tally.sent_at - self._started > _CROWDED
        state.fencing_token = self.token
        if self._demand.bid is not None:
            self._demand.bid.take(state, tally)
        if self._window is None:
            self._take_up(state)
        else:
            # Nobody holds it: it is neither renewed nor given back, and runs out by itself.
            self._window.note(tally.at - sent_at, late=False)
        return state

    def is_fresh(self, now: float) -> bool:
        """Whether what nodes handed over since they were asked lasts long enough to be lengthened in time."""
        return now < (self._asked_at + self._handed_until) / 2

    @property
    def _handed_until(self) -> float:
        return self._session.timing.valid_until(self._asked_at, self._place.kept)

    def take_over(self, now: float) -> HoldState:
        """Take up the hold that a quorum of nodes handed over: each keeps it for as long as the place it knew."""
        believed_until = self._handed_until
        turn = min(self._session.timing.round_timeout(self.lease), self._place.kept / 12)
        renewal_at = min((now // turn + 2) * turn, (now + believed_until) / 2)
        state = self._state(now, believed_until, renewal_at, self._touched, self._kept_until)
        state.queued = True
        self._take_up(state)
        return state

    def _state(self, since: float, valid_until: float, renewal_at: float, touched: int, kept_until: float) -> HoldState:
        demand = self._demand
        return HoldState(
            demand.name,
            demand.kind,
            demand.keys,
            demand.owner,
            self._claim,
            demand.holds,
            self.lease,
            valid_until,
            renewal_at,
            math.inf if demand.max_hold is None else since + demand.max_hold,
            touched,
            kept_until,
        )

    def _take_up(self, state: HoldState) -> None:
        listen(state, self._demand)
        self.state = state
        self._session.holds.add(state)


def acquire_new(session: Session, demand: Demand, started: float, now: float) -> Steps[HoldState | None]:
    """Ask for a new claim until it is had, for as long as the demand says; None if others held it all the time.

    Raises:
        QuorumError: Too few nodes answered: at once for one try, else at the deadline.
        KeyTypeError: The key holds a value of another type.
        ConfigurationError: The nodes have another limit than the bid.
    """
    attempt = _Attempt(session, demand, started)
    crowds, settled, held = session.crowds, False, False
    crowds.under_way += 1
    crowd = crowd_of(session, demand)
    try:
        if crowd is not None and not crowds.enter(crowd, demand.owner.wire):
            now, may_ask = yield from line_up(session, demand, crowd, now, attempt.deadline)
            if not may_ask:
                return None
            attempt.begin(now)
        while True:
            tally = yield from broadcast(attempt.ask(now))
            if tally.won and attempt.fence is not None and not attempt.is_level(tally):
                tally = yield from attempt.level(tally)
            now = tally.at
            if tally.won and now < attempt.valid_until(tally):
                state = attempt.hold(tally)
                demand.receipt.state = state
                return state
            attempt.note(tally)
            refusal = None if tally.won else attempt.refusal(tally)
            over = now >= attempt.deadline or refusal is not None
            # A round that was won too late tells as little as one without answers: the nodes are too slow now.
            mute = tally.without_quorum or tally.won
            was_held, held = held, not mute
            crowds.note(crowd, mute=mute)
            if refusal is None and attempt.learn(tally, over=over):
                # What some nodes may have granted is asked for again at once, and counts then: nothing to undo yet.
                continue
            leave = over or (mute and attempt.suspend())
            if over or attempt.in_doubt or (mute and tally.sent) or (leave and attempt.wake_key):
                yield from attempt.undo(leave=leave)
            settled = over
            if over:
                attempt.conclude(tally, refusal, mute=mute, was_held=was_held)
                return None
            wake = yield from wait(attempt.sleep(tally, mute))
            now = wake.at
            if wake.handed.bit_count() >= session.quorum and attempt.is_fresh(now):
                state = attempt.take_over(now)
                demand.receipt.state = state
                return state
    except BaseException:
        yield from attempt.drop(settled=settled)
        raise
    finally:
        crowds.under_way -= 1
        if crowd is not None and (follower := crowds.leave(crowd, demand.owner.wire)) is not None:
            yield from call_forward(demand, follower)


def listen(state: HoldState, demand: Demand) -> None:
    """Let the holder be told of the loss of a hold in the way that the demand asks for."""
    if demand.on_lost is not None:
        state.on_lost.append(demand.on_lost)


def _is_split(tally: Tally) -> bool:
    """Whether no other owner can be seen to have a quorum: then waiting for its release would most likely be vain.

    An owner's claims on nodes that failed are not seen. Who takes a holder for a split vote asks once too often; who
    takes a split vote for a holder sleeps while nobody is left to wake anybody.
    """
    return most_refusals(tally) + tally.choices.count(None) < tally.quorum


def _time_left(tally: Tally) -> float:
    """Return for how many seconds a quorum of nodes keeps the holder's claim."""
    # -1 stands for a claim without an end, and a foreign value tells none.
    remaining = sorted(reply[0] if reply and reply[0] >= 0 else math.inf for reply in refusals(tally))
    return remaining[min(tally.quorum - tally.granted, len(remaining)) - 1] / 1000
