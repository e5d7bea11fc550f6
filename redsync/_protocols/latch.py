"""The count-down latch: it opens when it has been counted down to zero, and never because nodes fail.

Nodes' knowledge only grows (see `_core/latches`), so every command is an *exchange*: it tells each node what this
client knows, and the node replies with what it knows then. So repetitions are harmless, and each look repairs nodes
that were down or forgot.

* *Counting down* has succeeded when a quorum knows the client's new total.
* *Setting* needs exclusion: two clients must not both find the latch open and set it. A setter holds a fenced lock,
  whose token is the generation. So a setter that was paused, or died half-way, can't replace a later generation. A
  setter that was paused for longer than the lock lasts does not claim success.
* *Waiting* is for one generation. It is over when that generation is open, or a later one is set, which requires an
  open latch, or one whose setting failed half-way. At every look a waiter restores what nodes forgot, so a node that
  forgets does not release it.

How answers are read, and which count after nodes forgot:

* *Reading.* The caller joins what a quorum tells. If less than a quorum knows all of it, the caller writes it back
  before it acts on it. So from then on every client sees what one client has seen.
* *Forgetting.* To a node that forgot the latest setting, the latch looks open: as if it had never been set, or as it
  was before. So a node that has remembered for less time than latches are kept has no vote, whatever clients have told
  it since. If too few others are left, all nodes must answer: any node that knows more is then among them. But it
  vouches for a latch that was set later. That shows in the generation: each token that a node forgot is below the
  clock at its *birth*, plus the guard, and each that it grants later is above (see `fenced_lock`). So a quorum always
  vouches for a latch that is set now, that which granted its setting. Setting requires only the memory that new grants
  require; else no client could set a latch for a day after a restart.

Nodes forget a latch that is unused for `keep` seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

from redsync._core.effects import Broadcast, Steps, Tell, Wait, broadcast, tell, wait
from redsync._core.holds import Owner
from redsync._core.keys import LatchKeys
from redsync._core.latches import Arrivals, LatchState
from redsync._core.local_queues import RETRIES
from redsync._core.quorum import Tally, Verdict
from redsync._core.scripts import Command, Script
from redsync._core.session import Session
from redsync._core.timing import milliseconds
from redsync._protocols.acquiring import GRACE, LAST_TRY, acquire_new
from redsync._protocols.answers import WRONG_TYPE, Refusal, gives_up, no_quorum, type_error
from redsync._protocols.claims import AcquireRequest
from redsync._protocols.fenced_lock import FENCED_LOCK, Fence, FencedClaim
from redsync._protocols.holding import give_back
from redsync.exceptions import AcquireTimeout, QuorumError

__all__ = ["Latch", "count_down", "count_left", "set_count", "wait_open"]

EXCHANGE = Script.load("latch_exchange")
LEAVE = Script.load("latch_leave")

PLACE_KEPT = 5.0
"""Seconds for which nodes keep a waiter's place; each look renews it."""

_SETTING = 5.0
"""The lease in seconds of the lock for setting: several rounds long. If a setter dies, others wait that long."""

_Decide: TypeAlias = Callable[[Tally], Verdict]


def _read(reply: Any) -> LatchState | Refusal:
    return WRONG_TYPE if reply.__class__ is int and reply == 0 else LatchState.read(reply)


def reports_in(tally: Tally) -> list[LatchState]:
    """Return the nodes' replies, without nodes that keep a foreign value."""
    return [answer for answer in tally.answers if isinstance(answer, LatchState)]


def is_known(tally: Tally) -> Verdict:
    """Return WON once a quorum vouches for its answers, or all nodes answer: then one of them knows everything.

    A round is lost only after each node has answered or failed: one of them may have what the others forgot.
    """
    if tally.granted >= tally.quorum:
        return Verdict.WON
    if None in tally.ballots:
        return Verdict.PENDING
    return Verdict.WON if len(reports_in(tally)) == len(tally.nodes) else Verdict.LOST


def is_noted(tally: Tally) -> Verdict:
    """Return WON once a quorum knows what the exchange told it."""
    reports = len(reports_in(tally))
    if reports >= tally.quorum:
        return Verdict.WON
    return Verdict.PENDING if reports + tally.unheard >= tally.quorum else Verdict.LOST


def may_set(tally: Tally) -> Verdict:
    """Return WON as `is_known` does, or, once each node has answered or failed, if a quorum may grant."""
    if tally.granted >= tally.quorum:
        return Verdict.WON
    return Verdict.PENDING if None in tally.ballots else is_noted(tally)


class Latch:
    """One latch object's knowledge of its latch; guarded by the atomicity of protocol steps.

    Attributes:
        name: The latch's name, for messages.
        keys: Its keys.
        keep: Seconds after its last use for which nodes keep the latch.
        known: The state, as far as the object knows; it tells nodes this for as long as they would have kept it.
    """

    __slots__ = ("_until", "keep", "keys", "known", "name")

    def __init__(self, name: str | bytes, keys: LatchKeys, keep: float) -> None:
        self.name = name
        self.keys = keys
        self.keep = keep
        self.known = LatchState()
        self._until = math.inf

    def recall(self, now: float) -> None:
        """Forget knowledge that is too old to believe."""
        if now >= self._until:
            self.known, self._until = LatchState(), math.inf

    def learn(self, told: LatchState, now: float) -> None:
        """Add a node's or this client's knowledge."""
        self.known = self.known.join(told)
        self._until = max(now + self.keep, -math.inf if self._until == math.inf else self._until)


class Caller:
    """One call: its latch, owner and place, its end, and the memory that it requires of nodes that know nothing."""

    def __init__(
        self,
        session: Session,
        latch: Latch,
        owner: Owner,
        now: float = 0.0,
        timeout: float | None = None,
        *,
        memory: float | None = None,
    ) -> None:
        self.session = session
        self.deadline = math.inf if timeout is None else now + timeout
        # The only try of a call without time takes as long as any.
        self.until = self.deadline if timeout else math.inf
        self.latch = latch
        self.owner = owner
        wanted = milliseconds(latch.keep if memory is None else memory)
        self._memory = session.processes.guard(wanted) if session.timing.restart_guard else 0
        self._clocks_differ = milliseconds(session.timing.restart_guard)
        self._found = LatchState()
        # A name for this call only: a late command of an earlier one, over another connection, must not end its place.
        waiter = owner.claim(next(session.claims))
        self.place = owner.channel + b" " + waiter
        self.wake_key = waiter + b" " + latch.keys.latch

    def command(self, state: LatchState, *, waits: bool = False) -> Command:
        """Return the exchange that tells nodes this state."""
        place = self.place if waits else b""
        args = (milliseconds(self.latch.keep), place, milliseconds(PLACE_KEPT), self._memory, self._clocks_differ)
        return Command(EXCHANGE, self.latch.keys.all, args + state.words())

    def exchange(self, now: float, decide: _Decide = is_known, *, waits: bool = False) -> Steps[Tally]:
        """Tell all nodes the known state, and learn theirs."""
        latch, longest = self.latch, max(self.until - now, LAST_TRY)
        latch.recall(now)
        if self._found.generation:
            # However long that takes: a caller that waits while nodes are down keeps the latch in use.
            latch.learn(self._found, now)
        tally = yield from broadcast(
            Broadcast(
                self.command(latch.known, waits=waits),
                self.owner,
                _read,
                min(self.session.timing.node_timeout, longest),
                decide=decide,
                subscribe=self.wake_key if waits else None,
                patience=longest,
            )
        )
        for report in reports_in(tally):
            latch.learn(report, tally.at)
        self._found = latch.known
        return tally

    def consult(self, now: float, decide: _Decide = is_known) -> Steps[tuple[LatchState, Tally]]:
        """Return the state that a quorum knows, once a quorum knows all of it, and the last round.

        Raises:
            QuorumError: Too few nodes answered.
            KeyTypeError: The key holds a value of another type.
        """
        self.latch.recall(now)
        before = self.latch.known.generation
        tally = yield from self.exchange(now, decide)
        if not tally.won and self.latch.known.generation > before:
            # A node had what others forgot. They vouch for it once they learn of it.
            tally = yield from self.exchange(tally.at, decide)
        self.require(tally)
        state = self.latch.known
        if not agree(tally, state):
            tally = yield from self.exchange(tally.at, is_noted)
            self.require(tally)
        return state, tally

    def require(self, tally: Tally) -> None:
        """Return if the round was won, else raise the reason."""
        if not tally.won:
            raise self.foreign(tally) or self._no_quorum(tally)

    def foreign(self, tally: Tally) -> Exception | None:
        """Return the error to raise if values of another type prevented a win."""
        return None if tally.won else type_error(self.latch.name, tally, "latch")

    def _no_quorum(self, tally: Tally) -> QuorumError:
        forgot = sum(not report for report in reports_in(tally))
        if not forgot or tally.without_quorum:
            return no_quorum(self.latch.name, tally, "latch")
        sentence = f"{forgot} of {len(tally.nodes)} nodes may have forgotten it, and not all others answer"
        return QuorumError(self.latch.name, f"latch {self.latch.name!r}: {sentence}", tally.votes)


def agree(tally: Tally, state: LatchState) -> bool:
    """Return whether a quorum knows all of that state."""
    return sum(report.covers(state) for report in reports_in(tally)) >= tally.quorum


def count_left(session: Session, latch: Latch, owner: Owner, now: float) -> Steps[int]:
    """Return the remaining count; 0 if the latch is open or was never set.

    Raises:
        QuorumError: Too few nodes answered, or too many have forgotten whether it was set.
        KeyTypeError: The key holds a value of another type.
    """
    state, _ = yield from Caller(session, latch, owner).consult(now)
    return state.count


def wait_open(session: Session, latch: Latch, owner: Owner, timeout: float | None, now: float) -> Steps[bool]:
    """Sleep until the latch is open or the timeout is over; return whether it is open.

    Raises:
        QuorumError: Too few nodes answered at the end of the timeout, or for the outage timeout. If the former cut the
            last round short, the one before counts.
        KeyTypeError: The key holds a value of another type.
    """
    caller = Caller(session, latch, owner, now, timeout)
    awaited, outage_since, failures, was_won = math.inf, math.inf, 0, False
    try:
        while True:
            cut_short = caller.until - now < session.timing.node_timeout
            tally = yield from caller.exchange(now, waits=True)
            now, state = tally.at, latch.known
            if tally.won:
                opened = state.count == 0 or state.generation > awaited
                known = opened or agree(tally, LatchState(state.generation))
                awaited = min(awaited, state.generation if known else math.inf)
                session.answered = True
                if opened and not agree(tally, state):
                    # Write that back at once, even after the deadline: the latch was seen open.
                    tally = yield from caller.exchange(now, is_noted, waits=True)
                    now = tally.at
                if opened and agree(tally, state):
                    return True
            foreign = caller.foreign(tally)
            if foreign is not None:
                raise foreign
            if now >= caller.deadline:
                # If the deadline cuts the last round short, it may get no answers. Then the round before decides.
                if not (was_won and cut_short):
                    caller.require(tally)
                return False
            was_won = tally.won
            failures = 0 if tally.won else failures + 1
            if failures:
                outage_since = min(outage_since, tally.sent_at)
                if gives_up(session, tally, outage_since):
                    caller.require(tally)
                until = min(caller.deadline, outage_since + session.timing.outage_timeout)
                now = yield from session.queues.retry(caller.place, failures, session.random(), now, until)
            else:
                yield from session.queues.leave_queues(caller.place, RETRIES)
                outage_since = math.inf
                # At once if too few nodes know the setting: the next exchange writes it back before others replace it.
                pause = 0.5 + session.random() if awaited < math.inf else 0.0
                until = min(caller.deadline, now + pause)
                now = (yield from wait(Wait(until, caller.wake_key, session.quorum, GRACE))).at
    finally:
        try:
            yield from session.queues.leave_queues(caller.place, RETRIES)
        finally:
            # Even if the latch was open at once: a node that has not learned of it keeps a place.
            leave = Command(LEAVE, latch.keys.all, (caller.place,))
            yield from tell(Tell(leave, owner, session.all_nodes))


def count_down(session: Session, latch: Latch, owner: Owner, now: float, *, n: int, timeout: float) -> Steps[None]:
    """Count the latch down by `n`; do nothing if it is open, or was never set.

    Raises:
        QuorumError: Too few nodes answered for `timeout` seconds or the outage timeout; the next call repeats this one.
        KeyTypeError: The key holds a value of another type.
    """
    table, key = session.arrivals, latch.keys.latch
    arrivals = table.setdefault(key, Arrivals())
    arrivals.running += 1
    try:
        caller = Caller(session, latch, owner, now, min(timeout, session.timing.outage_timeout))
        yield from _arrive(caller, arrivals, n, now)
    finally:
        arrivals.running -= 1
        if not arrivals.running and not arrivals.doubt:
            table.pop(key, None)


def _arrive(caller: Caller, arrivals: Arrivals, n: int, now: float) -> Steps[None]:
    latch, owner = caller.latch, caller.owner
    tally = yield from _insist(caller, now)
    if not latch.known.count and not agree(tally, latch.known):
        # If only some nodes know that it is open, they may forget it, and then this call would have to count.
        tally = yield from _insist(caller, tally.at, is_noted)
    state, client = latch.known, owner.client_id.encode()
    total = arrivals.begin(state, client, n) if state.count else None
    if total is None:
        return
    try:
        latch.learn(LatchState(state.generation, state.size, {client: total}), tally.at)
        tally = yield from _insist(caller, tally.at, is_noted)
    except BaseException:
        arrivals.fail(state.generation, n)
        raise
    if not latch.known.count and any(report.count for report in reports_in(tally)):
        # A node wakes its waiters only once it knows itself that the latch is open.
        yield from tell(Tell(caller.command(latch.known), owner))


def _insist(caller: Caller, now: float, decide: _Decide = is_known) -> Steps[Tally]:
    """Exchange until `decide` is satisfied.

    Raises:
        QuorumError: The deadline has passed, or time does not mend why too few nodes answer.
        KeyTypeError: The key holds a value of another type.
    """
    failures, session, deadline = 0, caller.session, caller.deadline
    try:
        while True:
            tally = yield from caller.exchange(now, decide)
            if tally.won:
                session.answered = True
                return tally
            if tally.at >= deadline or caller.foreign(tally) is not None or gives_up(session, tally, math.inf):
                caller.require(tally)
            failures += 1
            now = yield from session.queues.retry(caller.place, failures, session.random(), tally.at, deadline)
    finally:
        yield from session.queues.leave_queues(caller.place, RETRIES)


def set_count(session: Session, latch: Latch, owner: Owner, size: int, now: float) -> Steps[bool]:
    """Begin a new generation of that size; return whether it is now in force.

    A generation of size 0 replaces any other one, as if the latch had never been set, which releases all its waiters.
    Others replace only an open one.

    Raises:
        QuorumError: Too few nodes answered, or too late; the latch may be set nevertheless.
        AcquireTimeout: Others were setting or deleting the latch all the time.
        KeyTypeError: The key holds a value of another type.
    """
    caller = Caller(session, latch, owner, memory=session.timing.restart_guard)
    state, tally = yield from caller.consult(now, may_set)
    if state.count and size:
        return False
    request = AcquireRequest(
        name=latch.name,
        kind=FENCED_LOCK._replace(label="latch"),
        keys=latch.keys.setting,
        owner=owner,
        lease=_SETTING,
        timeout=2 * _SETTING,
    )
    claim = FencedClaim(session, request, Fence(state.generation))
    claim.round_timeout = session.timing.node_timeout  # Its short lease is no reason to wait less for far nodes.
    try:
        hold = yield from acquire_new(claim, tally.at)
        if hold is None:
            problem = f"latch {latch.name!r} was still being set or deleted by {request.holder or 'others'}"
            raise AcquireTimeout(latch.name, 2 * _SETTING, problem, request.holder)
        # Look again: others may have set the latch meanwhile.
        state, tally = yield from caller.consult(tally.at, may_set)
        if state.count and size:
            return False
        generation = hold.fencing_token
        assert generation is not None, "it is a fenced lock"
        if hold.valid(tally.at):
            latch.learn(LatchState(generation, size), tally.at)
            tally = yield from caller.exchange(tally.at, is_noted)
            caller.require(tally)
        if not hold.valid(tally.at):
            # The next holder of the lock may have seen the latch before this setting, and set it too.
            raise no_quorum(latch.name, tally, "latch")
        return latch.known.generation == generation
    finally:
        if request.state is not None:
            yield from give_back(session, request.state)
