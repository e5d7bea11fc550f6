"""One acquire's attempt: what it has asked of which nodes, so that it can be rolled back at any point; see `acquiring`.

It knows neither what it claims (`claims`) nor how it waits (`places`).
"""

from __future__ import annotations

import math

from redsync._core.effects import Broadcast, Steps, Wait, Wakeup, new_tuple, tell, wait
from redsync._core.holds import HoldState
from redsync._core.quorum import Tally
from redsync._core.runner import Session
from redsync._core.timing import retry_delay
from redsync._protocols.acquire_requests import AcquireRequest
from redsync._protocols.claims import Claim
from redsync._protocols.lease import rollback
from redsync._protocols.places import Place, is_held, waiters_ahead
from redsync._protocols.rounds import gives_up, is_outage, no_quorum
from redsync.exceptions import RedsyncError

__all__ = ["Attempt"]

_GRACE = 0.003
"""Seconds to wait for further nodes' wake-ups after the first: a release reaches the nodes one after the other."""

_CROWDED = 0.001
"""Seconds in the queue after which a lock counts as crowded: the next acquire asks for a place with its first try."""

_MANY, _PAUSE = 4, 0.001
"""An acquire that expects at least `_MANY` waiters before it pauses for `_PAUSE` seconds before its first ask."""

_LAST_TRY = 0.03
"""Seconds that a try may take if the caller's timeout is over, so that timeouts are accurate to 50 ms."""


class Attempt:
    """Everything that one acquire has done so far, so that it can be rolled back at any point.

    Attributes:
        id: The claim as nodes keep it; no other claim is equal.
        outage_since: The instant at which the present outage began; infinity if nodes answer.
    """

    # The initial state. Class attributes, because most attempts are over after one try, and change few of them.
    _state: HoldState | None = None
    _mark: bytes | None = None
    # Bit sets of nodes: those asked since the last rollback; of these, those that may have granted; all ever asked.
    _asked = _doubtful = _touched = 0
    # The end of a claim handed over since the last ask, and until when it has enough time left to be the hold; that
    # hold, but for the instant at which it begins.
    _handed_until = _had_until = 0.0
    _handed: HoldState | None = None
    # The instant of the latest ask, for how many seconds its round may wait, and until when nodes keep earlier ones.
    _asked_at = _timeout = _kept_until = 0.0
    _asking = _left = _repeats = False
    _failures = _splits = _tries = _ahead = 0
    _paused = 0.0
    outage_since = math.inf

    def __init__(self, session: Session, request: AcquireRequest, claim: Claim, started: float) -> None:
        self._session = session
        self._request = request
        self._claim = claim
        self._started = started
        self.id = request.owner.claim(next(session.claims))
        # None until needed: the first try of most acquires is granted, and asks for no place.
        self._place = claim.first_place(started)

    @property
    def deadline(self) -> float:
        """The instant at which the caller's timeout is over."""
        return self._request.deadline(self._started)

    @property
    def place(self) -> Place:
        """The place in which it waits."""
        if self._place is None:
            self._place = self._claim.place(self._started, at_once=False)
        return self._place

    @property
    def in_doubt(self) -> bool:
        """True if a node that was asked since the last rollback may have granted."""
        return self._doubtful != 0

    @property
    def _wake_key(self) -> bytes | None:
        """The words that name this attempt in nodes' wake-ups; None if no wake-up will come."""
        return self._request.owner.wire + b" " + self._request.keys.lock if self.place.taken else None

    # Asking.

    @property
    def can_pause(self) -> bool:
        """True if the first ask is in no hurry, because many waiters are expected before it.

        Often its thread has just released the lock, and the new holder is about to run. On a machine that both share,
        an ask now would take the processors from it: in the client, and in nodes that run here. The others keep the
        lock busy meanwhile, and a place by arrival counts from the beginning of the acquire.
        """
        return self._place is not None and self._session.crowds.expected.get(self._request.keys.hold, 0) >= _MANY

    def pause_first(self, now: float) -> Steps[float]:
        """Pause before the first ask; return the instant."""
        wake = yield from wait(Wait(min(self.deadline, now + _PAUSE)))
        self._paused = wake.at - now
        return wake.at

    def ask(self, now: float) -> Broadcast:
        """Return the effect that asks all nodes for a new claim, or else for a place in the queue."""
        request, claim, place = self._request, self._claim, self._place
        timeout = self.timeout_at(now) if request.timeout else claim.round_timeout
        self._asking = True
        self._asked_at = now
        self._timeout = timeout
        key, enough = None, is_held
        if place is None:
            command = claim.ask(self.id, ())
        else:
            command = claim.ask(self.id, place.ask(now))
            self._mark = place.mark
            key, enough = self._wake_key, place.enough
        patience = max(self.deadline - now, _LAST_TRY) if request.timeout else None
        # Before the last: record late votes, do not linger.
        ask = command, request.owner, claim.judge, timeout, claim.guard, 0, 0.0, claim.decide, key, enough, True, False
        return new_tuple(Broadcast, (*ask, patience))

    def timeout_at(self, now: float) -> float:
        """Return for how many seconds a round that begins now may wait for nodes."""
        usual = self._claim.round_timeout
        return min(usual, max(self.deadline - now, _LAST_TRY)) if self._request.timeout else usual

    def note(self, tally: Tally, now: float) -> None:
        """Record which nodes the round asked; each may have granted as late as now."""
        # The message about a success goes to all nodes, even to those that are absent now; so must a rollback after it.
        sent = self._session.all_nodes if tally.won and self._claim.must_renumber else tally.sent
        if self._request.outcome.record is not None:
            self._request.outcome.record.note_round(tally)
        self._tries += 1
        self._kept_until = max(self._ask_kept_until(), now + self._claim.lease)
        # A node that refuses keeps none of our claims, not even one of an earlier round.
        self._doubtful = (self._doubtful | sent) & ~tally.refusers
        self._touched |= sent
        self._asked |= sent
        # Last: until then an interruption rolls back on all nodes.
        self._asking = self._left = self._repeats = False

    def _ask_kept_until(self) -> float:
        """Return until when nodes may keep what was asked for, if the latest ask reaches them within its timeout."""
        kept, place = self._claim.lease, self._place
        if place is not None and place.taken:
            kept = max(kept, place.lasts)
        return max(self._kept_until, self._asked_at + self._timeout + kept)

    def is_over(self, tally: Tally, now: float, *, mute: bool) -> bool:
        """Record whether the round found a quorum; return whether the wait for others, or for nodes, is over."""
        session = self._session
        session.answered |= not mute
        if not (mute and is_outage(tally)):
            self.outage_since = math.inf
            return now >= self.deadline
        self.outage_since = min(self.outage_since, tally.sent_at)
        return now >= self.deadline or gives_up(session, tally, self.outage_since)

    def repeats(self, tally: Tally, *, over: bool) -> bool:
        """Record a round without success; return whether to ask again at once, without a rollback."""
        claim = self._claim
        if tally.won:
            self._repeats = claim.insist(tally)
        elif not tally.without_quorum:
            self._repeats = claim.adapt(tally)
            if not self._repeats and not over and claim.may_queue(tally):
                self._queue(tally)
        return self._repeats

    def repeat(self) -> Steps[None]:
        """Prepare to ask again at once: with the same claim, unless a message about it may come after that ask."""
        if self._claim.must_renumber:
            yield from self.roll_back(leave=False)

    def _queue(self, tally: Tally) -> None:
        """Ask for a place with the next try, if this round has told enough to know which."""
        if self.place.learn(tally):
            self._claim.queued()
            self._repeats = True

    # Rolling back.

    def roll_back(self, *, leave: bool) -> Steps[None]:
        """Drop all claims that nodes may have granted; leave the queues if `leave`, or if our place is unsettled."""
        request, place = self._request, self.place
        leave = place.taken and (leave or place.unsettled)
        # The rollback undoes hand-overs that come before it, so these must not count.
        self._mark = None
        # An interrupted round may have been sent to any node. Our place may be on any node that we ever asked; our
        # claim only where we asked since the last rollback.
        owed_to = self._session.all_nodes if self._asking else self._touched if leave else self._asked
        back = () if leave else self._claim.given_back()
        until = self._ask_kept_until() if self._asking else self._kept_until
        drop = rollback(
            request.kind, request.keys, request.owner, self.id, leave=leave, owed_to=owed_to, owed_until=until
        )
        if back:
            # Not kept as a pending release: a node that restored the place later would keep it after its owner left.
            command = drop.command._replace(args=(*drop.command.args, *back))
            yield from tell(drop._replace(command=command, owed_to=0))
        yield from tell(drop)
        if back:
            # Now even nodes that we never asked keep the place, and must learn when we leave it.
            self._touched = self._session.all_nodes
        # Only now: if an interruption struck before the send, everything must still be rolled back.
        self._doubtful = self._asked = 0
        self.id = request.owner.claim(next(self._session.claims))
        self._left = leave
        if leave:
            place.leave()

    def drop(self, *, settled: bool) -> Steps[None]:
        """Roll back everything, even a hold that was won; do nothing if the acquire has ended and rolled back."""
        if settled:
            return
        # Interrupted: a claim may be on its way to any node, and a place to any queue.
        if self._state is not None:
            self._session.holds.remove(self._state)
            self._state = None
        if self._asking or self._touched:
            yield from self.roll_back(leave=True)

    def conclude(self, tally: Tally, now: float, refusal: RedsyncError | None, *, mute: bool, was_held: bool) -> None:
        """End an acquire whose timeout is over: return if others hold the lock, else raise the reason."""
        if refusal is not None:
            try:
                raise refusal
            finally:
                refusal = None  # Or this frame and the error would keep each other alive, and the caller's connections.
        # If the deadline cuts the last round short, it may get no answers. Then the round before decides.
        if mute and not (was_held and self._timeout < self._claim.round_timeout):
            raise no_quorum(self._request.name, tally, self._request.kind.label, at=now)
        if self.place.guesses:
            self._session.crowds.expect(self._request.keys.hold, others=True, ahead=self._ahead)

    # Waiting.

    def sleep(self, tally: Tally, now: float, *, mute: bool) -> Wait:
        """Return the sleep before the next try."""
        random = self._session.random()
        if self._request.outcome.record is not None:
            self._request.outcome.record.note_sleep(now, queued=self.place.taken)
        if mute:
            self._failures += 1
            pause = retry_delay(self._failures, random, shortest=0.02, longest=0.25)
            # At most one waiter of the client asks meanwhile, so the turn may not come before the wait is over.
            until = self.outage_since + self._session.timing.outage_timeout
            return Wait(min(self.deadline, until), retry_at=now + pause)
        place = self.place
        if self._mark:
            # Now, because nothing may delay the work under the lock once nodes have handed it over.
            self._handed_until = until = self._session.timing.valid_until(self._asked_at, place.handed)
            self._ahead = max(self._ahead, waiters_ahead(tally))
            self._had_until = until - self._claim.least_left * (until - self._asked_at)
            if self.is_had(now):
                self._handed = self._claim.hold(self.id, now, until, math.inf, self._touched, self._kept_until, None)
            self._session.crowds.expect(self._request.keys.hold, others=True, ahead=self._ahead)
        pause = place.pause(self._tries, random, lambda: self._usual_pause(tally, random))
        return Wait(min(self.deadline, now + pause), self._wake_key, self._session.quorum, _GRACE, self._mark)

    def _usual_pause(self, tally: Tally, random: float) -> float:
        """Return how many seconds to sleep after a refusal."""
        if self._claim.is_split(tally):
            # From now on each try queues in the same step in which a node refuses it. But if we have just left the
            # queue, our place comes after all that queued meanwhile, and this round knows nothing of them.
            if not self._left:
                self._queue(tally)
            self._splits += 1
            if self._request.outcome.record is not None:
                self._request.outcome.record.note_split(tally.at)
            return retry_delay(self._splits, random, longest=0.05)
        self._failures = self._splits = 0
        return min(self._claim.look_after(tally, random), self.place.longest_pause(tally, random))

    def wake_up(self, wake: Wakeup) -> float:
        """Record the end of a sleep; return its instant."""
        if self._request.outcome.record is not None and wake.signals:
            self._request.outcome.record.note_woken(wake.at)
        if not self._repeats:
            self._claim.begin()
        return wake.at

    # Succeeding.

    def hold(self, tally: Tally, now: float, believed_until: float) -> HoldState:
        """Add the hold that was won to the client's holds, and return it."""
        session = self._session
        session.answered = True
        request = self._request
        claim = self._claim
        place = self._place
        sent_at = tally.sent_at
        kept_until = now + claim.lease
        if place is not None:
            if place.taken:
                # On nodes that the winning round did not reach, the place stays.
                kept_until = max(self._ask_kept_until(), kept_until)
            if place.guesses:
                had_to_queue = place.taken and sent_at - self._started - self._paused > _CROWDED
                session.crowds.expect(request.keys.hold, others=had_to_queue, ahead=self._ahead)
        renewal_at, touched = sent_at + claim.renewed_after, self._touched | tally.sent
        state = claim.hold(self.id, sent_at, believed_until, renewal_at, touched, kept_until, tally)
        if session.quorum < session.nodes:
            # Rounded to multiples of a round timeout, so that ten thousand grants don't wake the watchdog ten thousand
            # times.
            turn = claim.round_timeout
            state.fill_at = (sent_at // turn + 2) * turn
            state.tally = tally
        record = request.outcome.record
        if record is not None:
            record.note_round(tally)
            # The claim may have taken more than that round to settle.
            record.at = now
        self._state = state
        claim.take_up(state)
        request.outcome.state = state
        return state

    def is_had(self, now: float) -> bool:
        """Return whether the claim handed over since the last ask has enough of its time left to be the hold."""
        return now < self._had_until

    def take_over(self, now: float) -> HoldState:
        """Return the hold that a quorum of nodes handed over, each since the last ask."""
        state, claim, request = self._handed, self._claim, self._request
        assert state is not None, "this attempt waits for it"
        turn = min(claim.round_timeout, self.place.kept / 12)
        look_at = min((now // turn + 2) * turn, (now + self._handed_until) / 2)
        claim.begin_hold(state, now, self._handed_until)
        if request.renewed:
            state.renew_at = look_at
        elif self._session.nodes > self._session.quorum:
            # No renewal will show how many nodes keep it.
            state.fill_at = look_at
        record = request.outcome.record
        if record is not None:
            record.note_handed_over(now)
        self._state = state
        claim.take_up(state)
        request.outcome.state = state
        return state
