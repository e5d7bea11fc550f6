"""One acquire's attempt: what it has asked which nodes, so that it can be rolled back at any point; see `acquiring`.

It knows neither what it claims (`claims`) nor how it waits (`places`).
"""

from __future__ import annotations

import math

from redsync._core.effects import Broadcast, Steps, Wait, Wakeup, tell
from redsync._core.holds import HoldState
from redsync._core.quorum import Tally
from redsync._core.runner import Session
from redsync._core.timing import retry_delay
from redsync._protocols.acquire_requests import AcquireRequest
from redsync._protocols.claims import Claim
from redsync._protocols.lease import renew_at, rollback
from redsync._protocols.places import Place, is_held
from redsync._protocols.rounds import no_quorum, time_left
from redsync.exceptions import RedsyncError

__all__ = ["Attempt"]

_GRACE = 0.003
"""Seconds to wait for more nodes' wake-ups after the first: a release reaches the nodes one after the other."""

_CROWDED = 0.001
"""Seconds in the queue after which a lock counts as crowded: the next acquire asks for a place with its first try."""

_LAST_TRY = 0.03
"""Seconds that a try may take when the caller's time is already up, so that timeouts are kept within 50 ms."""


class Attempt:
    """What one acquire has done so far, so that it can be rolled back at any point.

    Attributes:
        id: The claim as nodes keep it, different from any other.
        deadline: When the caller's timeout is over.
    """

    # How an attempt begins. It is here because most are over after one try, and change little of it.
    _state: HoldState | None = None
    _mark: bytes | None = None
    # Bit sets of nodes: asked since the last rollback; of these, those that may have granted; and all ever asked.
    _asked = _doubtful = _touched = 0
    _kept_until = _asked_at = 0.0
    _asking = _left = _repeats = _hurried = False
    _failures = _splits = _tries = 0

    def __init__(self, session: Session, request: AcquireRequest, claim: Claim, started: float) -> None:
        self._session = session
        self._request = request
        self._claim = claim
        self._started = started
        self.id = request.owner.claim(next(session.claims))
        self.deadline = request.deadline(started)
        # None until it is needed: the first try of most acquires is granted, and asks for no place.
        self._place = claim.first_place(started)

    @property
    def place(self) -> Place:
        """How it waits."""
        if self._place is None:
            self._place = self._claim.place(self._started, at_once=False)
        return self._place

    @property
    def in_doubt(self) -> bool:
        """Whether a node that was asked since the last rollback may have granted."""
        return self._doubtful != 0

    @property
    def _wake_key(self) -> bytes | None:
        """The words by which nodes' wake-ups name this attempt; None if no wake-up will come."""
        return self._request.owner.wire + b" " + self._request.keys.lock if self.place.taken else None

    # Asking.

    def ask(self, now: float) -> Broadcast:
        """Return the effect that asks all nodes for a new claim, and for a place in the queue if they refuse."""
        claim, place = self._claim, self._place
        timeout = self.timeout_at(now)
        self._hurried = timeout < claim.round_timeout
        self._asking, self._left = True, False
        self._tries += 1
        if not self._repeats:
            claim.begin()
        self._repeats = False
        self._asked_at = now
        if place is None:
            command, kept, subscribe, enough = claim.ask(self.id, ()), claim.lease, None, is_held
        else:
            command = claim.ask(self.id, place.ask(now))
            self._mark = place.mark
            kept = max(claim.lease, place.lasts) if place.taken else claim.lease
            subscribe, enough = self._wake_key, place.enough
        if self._kept_until < (kept_until := now + timeout + kept):
            self._kept_until = kept_until
        return Broadcast(
            command,
            self._request.owner,
            claim.judge,
            timeout,
            claim.guard,
            decide=claim.decide,
            subscribe=subscribe,
            thorough=enough,
            late=True,
            packing=claim.packing,
        )

    def timeout_at(self, now: float) -> float:
        """Return for how many seconds a round that begins now may wait for nodes."""
        usual = self._claim.round_timeout
        return min(usual, max(self.deadline - now, _LAST_TRY)) if self._request.timeout else usual

    def note(self, tally: Tally, now: float) -> None:
        """Record which nodes the round asked, and that each may have granted as late as now."""
        self._asking = False
        if self._request.record is not None:
            self._request.record.note_round(tally)
        self._touched |= tally.sent
        self._asked |= tally.sent
        # A node that refuses keeps no claim of ours, not even one of an earlier round.
        self._doubtful = (self._doubtful | tally.sent) & ~tally.refusers
        self._kept_until = max(self._kept_until, now + self._claim.lease)

    def repeats(self, tally: Tally, *, over: bool) -> bool:
        """Record a round without success; return whether to ask again at once, without a rollback first."""
        claim = self._claim
        if tally.won:
            self._repeats = claim.insist(tally)
        elif not tally.without_quorum:
            self._repeats = claim.adapt(tally)
            if not self._repeats and not over and claim.may_queue(tally):
                self._queue(tally)
        return self._repeats

    def _queue(self, tally: Tally) -> None:
        """Ask for a place with the next try, if this round has told enough."""
        if self.place.learn(tally):
            self._claim.queued()
            self._repeats = True

    # Rolling back.

    def roll_back(self, *, leave: bool) -> Steps[None]:
        """Drop what any node may have granted, and our place in the queues if we `leave`, or if it is not settled."""
        request, place = self._request, self.place
        leave = place.taken and (leave or place.unsettled)
        # What nodes hand over until they get this is taken away again, and not to be counted.
        self._mark = None
        # A round that was interrupted may have been sent to any node.
        # Our place may be anywhere that we ever asked; our claim only where we asked for it.
        owed_to = self._session.all_nodes if self._asking else self._touched if leave else self._asked
        back = () if leave else self._claim.given_back()
        until = self._kept_until
        drop = rollback(
            request.kind, request.keys, request.owner, self.id, leave=leave, owed_to=owed_to, owed_until=until
        )
        if back:
            # Not kept as a pending release: a node that restored the place later would keep it for an owner that left.
            command = drop.command._replace(args=(*drop.command.args, *back))
            yield from tell(drop._replace(command=command, owed_to=0))
        yield from tell(drop)
        if back:
            # Now even nodes that were never asked keep the place, and must learn when we leave it.
            self._touched = self._session.all_nodes
        # Only now: after an interruption before the send, all of it must still be rolled back.
        self._doubtful = self._asked = 0
        self.id = request.owner.claim(next(self._session.claims))
        self._left = leave
        if leave:
            place.leave()

    def drop(self, *, settled: bool) -> Steps[None]:
        """Roll back everything, even a hold that was won; do nothing if the acquire is over and rolled back already."""
        if settled:
            return
        # Interrupted: a claim may be on its way to any node, and a place in any queue.
        if self._state is not None:
            self._session.holds.remove(self._state)
            self._state = None
        if self._asking or self._touched:
            yield from self.roll_back(leave=True)

    def conclude(self, tally: Tally, now: float, refusal: RedsyncError | None, *, mute: bool, was_held: bool) -> None:
        """End an acquire whose time is up: return if others hold the lock, else raise the reason."""
        if refusal is not None:
            raise refusal
        # A last round cut short by the deadline may get no answers. Then the round before tells whether others hold it.
        if mute and not (was_held and self._hurried):
            raise no_quorum(self._request.name, tally, self._request.kind.label, at=now)
        if self.place.guesses:
            self._session.crowds.expect(self._request.keys.hold, others=True)

    # Waiting.

    def sleep(self, tally: Tally, now: float, *, mute: bool) -> Wait:
        """Return the sleep before the next try."""
        random = self._session.random()
        if self._request.record is not None:
            self._request.record.note_sleep(now, queued=self.place.taken)
        if mute:
            self._failures += 1
            pause = retry_delay(self._failures, random, shortest=0.02, longest=0.25)
            return Wait(self.deadline, retry_at=now + pause)
        pause = self.place.pause(self._tries, random, lambda: self._usual_pause(tally, random))
        return Wait(min(self.deadline, now + pause), self._wake_key, self._session.quorum, _GRACE, self._mark)

    def _usual_pause(self, tally: Tally, random: float) -> float:
        """Return how many seconds to sleep after a refusal."""
        if self._claim.is_split(tally):
            # From now on each try takes a place, in the same step that refuses it. But if we have just left the queue,
            # our place comes after all that queued meanwhile, and this round knows nothing of them.
            if not self._left:
                self._queue(tally)
            self._splits += 1
            if self._request.record is not None:
                self._request.record.note_split(tally.at)
            return retry_delay(self._splits, random, longest=0.05)
        self._failures = self._splits = 0
        return min(time_left(tally) + 0.001 + self._claim.spread * random, self.place.longest_pause(tally, random))

    def wake_up(self, wake: Wakeup) -> float:
        """Record the end of a sleep; return its instant."""
        if self._request.record is not None and wake.signals:
            self._request.record.note_woken(wake.at)
        return wake.at

    # Succeeding.

    def hold(self, tally: Tally, now: float, believed_until: float) -> HoldState:
        """Return the hold that was won, after adding it to the client's holds."""
        session, claim, place, sent_at = self._session, self._claim, self._place, tally.sent_at
        lease, has_place = claim.lease, place is not None and place.taken
        # On nodes that the winning round did not reach, the place lasts.
        kept_until = max(self._kept_until, now + lease) if has_place else now + lease
        renewal_at = renew_at(sent_at, lease) if self._request.renewed else math.inf
        touched = self._touched | tally.sent
        state = claim.hold(self.id, sent_at, believed_until, renewal_at, touched, kept_until)
        if session.nodes > session.quorum:
            # Rounded to multiples of a round timeout: ten thousand grants must not wake the watchdog ten thousand
            # times.
            turn = claim.round_timeout
            state.fill_at = (sent_at // turn + 2) * turn
            state.tally = tally
        had_to_queue = has_place and self.place.guesses and sent_at - self._started > _CROWDED
        session.crowds.expect(self._request.keys.hold, others=had_to_queue)
        claim.note_won(state, tally)
        if self._request.record is not None:
            self._request.record.note_round(tally)
        return self._take_up(state)

    def is_had(self, now: float) -> bool:
        """Whether the claim that nodes handed over since the last ask is the hold: enough of its time must be left."""
        left, whole = self._handed_until - now, self._handed_until - self._asked_at
        return left > 0.0 and left > self._claim.least_left * whole

    @property
    def _handed_until(self) -> float:
        return self._session.timing.valid_until(self._asked_at, self.place.handed)

    def take_over(self, now: float) -> HoldState:
        """Return the hold that a quorum of nodes handed over, each of them since the last ask."""
        session, request, believed_until = self._session, self._request, self._handed_until
        turn = min(self._claim.round_timeout, self.place.kept / 12)
        look_at = min((now // turn + 2) * turn, (now + believed_until) / 2)
        renewal_at = look_at if request.renewed else math.inf
        state = self._claim.hold(self.id, now, believed_until, renewal_at, self._touched, self._kept_until)
        if not request.renewed and session.nodes > session.quorum:
            # No renewal will tell on how many nodes it lives.
            state.fill_at = look_at
        session.crowds.expect(request.keys.hold, others=True)
        if self._request.record is not None:
            self._request.record.note_handed_over(now)
        return self._take_up(state)

    def _take_up(self, state: HoldState) -> HoldState:
        self._state = state
        self._claim.take_up(state)
        self._request.outcome.state = state
        return state
