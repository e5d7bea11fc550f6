"""The count-down latch: it opens when as much was counted down as it was set to, and never because nodes fail.

What nodes know only grows (see `_core/latches`), so every command is an *exchange*: it tells each node what this client
knows, and what the node knows then comes back. That makes repetitions harmless, and each look a repair of nodes that
were down or forgot.

* *Reading.* What a quorum tells is joined. Where less than a quorum knows all of it, it is written back before anybody
  acts on it: so what one has seen, everybody sees from then on.
* *Counting down* has succeeded when a quorum knows the client's new total.
* *Setting* needs exclusion: two must not both find it open and set it. It is done under a fenced lock, whose token is
  the generation. So a setter that was paused, or died half-way, can't replace what was set after it; and one that was
  paused for longer than the lock lasts does not say that it has set it.
* *Forgetting.* A latch that nobody set counts as open, and so does one that was open before it was set anew. Whoever
  says so must know, and a node whose memory is shorter than latches are kept may have known more. While it knows
  nothing it has no vote. What it is told then is *hearsay*, and counts only if all nodes answer: among them is whoever
  knows more. That ends as soon as somebody tells it what a quorum knew at an instant after it had forgotten. Setting
  anew needs only the memory that new grants need, or nobody could for a day after a restart.
* *Waiting* is for one generation. It is over when that is open, or a later one is set: that needs an open latch, or one
  whose setting had failed half-way. A waiter restores what nodes forget, at every look, so it is not released by them.

A latch is forgotten when it was not used for `keep` seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

from redsync._core.effects import Broadcast, Command, Steps, Tell, Wait, broadcast, tell, wait
from redsync._core.keys import LatchKeys
from redsync._core.latches import Arrivals, LatchState, Told
from redsync._core.ownership import Owner
from redsync._core.quorum import Tally, Verdict, Votes
from redsync._core.runner import Session
from redsync._core.scripts import Script
from redsync._core.timing import retry_delay
from redsync._protocols.acquiring import acquire_new
from redsync._protocols.answers import FOREIGN, Refusal
from redsync._protocols.demands import Demand, Receipt
from redsync._protocols.fenced_lock import FENCED_LOCK
from redsync._protocols.holding import give_back
from redsync._protocols.lease import milliseconds
from redsync._protocols.rounds import no_quorum, type_error
from redsync._protocols.tokens import Fence, FencedClaim
from redsync.exceptions import AcquireTimeout, QuorumError

__all__ = ["Latch", "count_down", "count_left", "delete", "set_count", "wait_open"]

_Decide: TypeAlias = Callable[[Tally], Verdict]

EXCHANGE = Script.load("latch_exchange")
LEAVE = Script.load("latch_leave")

_PLACE_KEPT = 5.0
"""Seconds for which nodes keep a waiter's place; each look renews it."""

_GRACE = 0.003
"""Seconds to wait for more nodes' wake-ups after the first."""

_LAST_TRY = 0.03
"""Seconds that a look may take when the caller's time is already up."""

_SETTING = 5.0
"""Seconds of the lease under which it is set: some rounds long. Others wait that long if the setter dies."""


def _read(reply: Any) -> Told | Refusal:
    return FOREIGN if reply.__class__ is int and reply == 0 else Told.read(reply)


def _told(tally: Votes) -> list[tuple[int, Told]]:
    """Return what nodes told, by their indices; foreign values left out."""
    return [(i, answer) for i, answer in enumerate(tally.answers) if isinstance(answer, Told)]


def _is_known(tally: Tally) -> Verdict:
    """Look for a quorum that knows all it ever knew; else for all nodes, of which somebody does."""
    if tally.granted >= tally.quorum:
        return Verdict.WON
    if None not in tally.choices:
        return Verdict.WON if len(_told(tally)) == len(tally.nodes) else Verdict.LOST
    possible = len(tally.nodes) - tally.refused - tally.failed >= tally.quorum
    hearsay = len(_told(tally)) == len(tally.nodes) - tally.choices.count(None)
    return Verdict.PENDING if possible or hearsay else Verdict.LOST


def _is_noted(tally: Tally) -> Verdict:
    """Look for a quorum that knows now what it was told."""
    told = len(_told(tally))
    if told >= tally.quorum:
        return Verdict.WON
    return Verdict.PENDING if told + tally.choices.count(None) >= tally.quorum else Verdict.LOST


def _may_set(tally: Tally) -> Verdict:
    """Look for a quorum as `_is_known`; else, of all that answer, for one that may grant."""
    if tally.granted >= tally.quorum:
        return Verdict.WON
    return Verdict.PENDING if None in tally.choices else _is_noted(tally)


class Latch:
    """One latch object's view; guarded by the atomicity of protocol steps.

    Attributes:
        name: The latch's name, for messages.
        keys: Its keys.
        keep: For how many seconds after its last use nodes keep it.
        known: What is known of it. It is told to nodes for as long as they would have kept it.
        lives: Since when those nodes remember that have hearsay of it, by their indices.
        settled: Those of which it is known that they had forgotten before a quorum was asked for what is known.
        latest: The latest round; votes that come late are noted in it.
    """

    __slots__ = ("_until", "keep", "keys", "known", "latest", "lives", "name", "settled")

    def __init__(self, name: str | bytes, keys: LatchKeys, keep: float) -> None:
        self.name = name
        self.keys = keys
        self.keep = keep
        self.known = LatchState()
        self.lives: dict[int, int] = {}
        self.settled: list[int] = []
        self.latest: Tally | None = None
        self._until = math.inf

    def recall(self, now: float) -> None:
        """Forget what is no longer to be believed."""
        if now >= self._until:
            self.known, self.settled, self.latest, self._until = LatchState(), [], None, math.inf

    def learn(self, told: LatchState, now: float) -> None:
        """Take up what somebody knows."""
        self.known = self.known.join(told)
        self._until = max(now + self.keep, -math.inf if self._until == math.inf else self._until)

    def hear(self, tally: Tally) -> None:
        """Take up what nodes have told."""
        for i, told in _told(tally.all_votes):
            self.learn(told.state, tally.at)
            self.lives.pop(i, None)
            if told.life is not None and told.life > 0:
                self.lives[i] = told.life


class _Caller:
    """One call: whose, with what memory required of nodes that know nothing, and from when on it waits."""

    def __init__(self, session: Session, latch: Latch, owner: Owner, memory: float | None = None) -> None:
        self.session = session
        self.latch = latch
        self.owner = owner
        wanted = milliseconds(latch.keep if memory is None else memory)
        self._memory = session.processes.guard(wanted) if session.timing.restart_guard else 0
        self._found = LatchState()
        self.place = owner.channel + b" " + owner.wire
        self.wake_key = owner.wire + b" " + latch.keys.latch

    def command(self, state: LatchState, *, waits: bool = False) -> Command:
        """Return the exchange that tells nodes that state."""
        place = self.place if waits else b""
        settled = b" ".join(b"%d" % life for life in self.latch.settled)
        args = (milliseconds(self.latch.keep), place, milliseconds(_PLACE_KEPT), self._memory, settled)
        return Command(EXCHANGE, self.latch.keys.all, args + state.words())

    def exchange(
        self, now: float, decide: _Decide = _is_known, *, patience: float = math.inf, waits: bool = False
    ) -> Steps[Tally]:
        """Tell all nodes what is known, and learn what they know."""
        latch = self.latch
        latch.recall(now)
        if self._found.generation:
            # However long it takes: who waits while nodes are down keeps the latch in use.
            latch.learn(self._found, now)
        if latch.latest is not None:
            latch.hear(latch.latest)
        lives = list(latch.lives.values())
        tally = yield from broadcast(
            Broadcast(
                self.command(latch.known, waits=waits),
                self.owner,
                _read,
                min(self.session.timing.node_timeout, max(patience, _LAST_TRY)),
                decide=decide,
                listen=self.wake_key if waits else None,
                late=True,
            )
        )
        latch.latest = tally
        latch.hear(tally)
        self._found = latch.known
        if tally.won and decide is _is_known:
            latch.settled = lives
            if any(told.life in lives for _, told in _told(tally)):
                yield from tell(Tell(self.command(latch.known), self.owner))
        return tally

    def consult(self, now: float, decide: _Decide = _is_known) -> Steps[tuple[LatchState, Tally]]:
        """Return what a quorum knows, once a quorum knows all of it, and the last round.

        Raises:
            QuorumError: Too few nodes answered.
            KeyTypeError: The key holds a value of another type.
        """
        tally = yield from self.exchange(now, decide)
        self.require(tally)
        state = self.latch.known
        if not _agree(tally, state):
            tally = yield from self.exchange(tally.at, _is_noted)
            self.require(tally)
        return state, tally

    def require(self, tally: Tally) -> None:
        """Return if a quorum answered, else raise."""
        if not tally.won:
            raise self.foreign(tally) or self._no_quorum(tally)

    def foreign(self, tally: Tally) -> Exception | None:
        """Return the error for a value of another type."""
        return None if tally.won else type_error(self.latch.name, tally, "latch")

    def _no_quorum(self, tally: Tally) -> QuorumError:
        hearsay = sum(told.life is not None for _, told in _told(tally))
        if not hearsay or tally.without_quorum:
            return no_quorum(self.latch.name, tally, "latch")
        sentence = f"{hearsay} of {len(tally.nodes)} nodes may have forgotten it, and not all others answer"
        return QuorumError(self.latch.name, f"latch {self.latch.name!r}: {sentence}", tally.votes)


def _agree(tally: Tally, state: LatchState) -> bool:
    """Whether a quorum knows all of that."""
    return sum(told.state.covers(state) for _, told in _told(tally)) >= tally.quorum


def count_left(session: Session, latch: Latch, owner: Owner, now: float) -> Steps[int]:
    """Return how much is left to be counted down; 0 if it is open or was never set.

    Raises:
        QuorumError: Too few nodes answered, or too many have forgotten whether it was set.
        KeyTypeError: The key holds a value of another type.
    """
    state, _ = yield from _Caller(session, latch, owner).consult(now)
    return state.count


def wait_open(session: Session, latch: Latch, owner: Owner, timeout: float | None, now: float) -> Steps[bool]:
    """Sleep until it is open; return whether it is, False when the time is up.

    Raises:
        QuorumError: Too few nodes answered at the end of the timeout.
        KeyTypeError: The key holds a value of another type.
    """
    caller = _Caller(session, latch, owner)
    deadline = math.inf if timeout is None else now + timeout
    awaited, failures, opened, written = math.inf, 0, False, False
    try:
        while True:
            tally = yield from caller.exchange(now, patience=deadline - now, waits=True)
            now, state = tally.at, latch.known
            if tally.won:
                opened = state.count == 0 or state.generation > awaited
                awaited = min(awaited, state.generation)
            if opened and _agree(tally, state):
                return True
            foreign = caller.foreign(tally)
            if foreign is not None:
                raise foreign
            if tally.won and opened and not (written and now >= deadline):
                # Written back by the next exchange, at once, even if the time is up: it was seen to be open.
                written = True
                continue
            if now >= deadline:
                caller.require(tally)
                return False
            failures = 0 if tally.won else failures + 1
            if failures:
                now = (yield from wait(_retry(caller, failures, deadline, now))).at
            else:
                until = min(deadline, now + 0.5 + session.luck())
                now = (yield from wait(Wait(until, caller.wake_key, session.quorum, _GRACE))).at
    finally:
        # Also where it was open at once: a node that has not heard of that keeps a place.
        leave = Command(LEAVE, latch.keys.all, (caller.place,))
        yield from tell(Tell(leave, owner, session.all_nodes, now + _PLACE_KEPT))


def _retry(caller: _Caller, failures: int, deadline: float, now: float) -> Wait:
    """Return the sleep before a round is repeated that found no quorum."""
    pause = retry_delay(failures, caller.session.luck(), shortest=0.02, longest=0.25)
    return Wait(deadline, retry_at=now + pause)


def count_down(session: Session, latch: Latch, owner: Owner, now: float, *, n: int, patience: float) -> Steps[None]:
    """Count `n` down; nothing if it is open or was never set.

    Raises:
        QuorumError: Too few nodes answered for so many seconds; the client's next call repeats this one.
        KeyTypeError: The key holds a value of another type.
    """
    table, key = session.arrivals, latch.keys.latch
    arrivals = table.setdefault(key, Arrivals())
    arrivals.running += 1
    try:
        yield from _arrive(_Caller(session, latch, owner), arrivals, n, now, now + patience)
    finally:
        arrivals.running -= 1
        if not arrivals.running and not arrivals.doubt:
            table.pop(key, None)


def _arrive(caller: _Caller, arrivals: Arrivals, n: int, now: float, deadline: float) -> Steps[None]:
    latch, owner = caller.latch, caller.owner
    tally = yield from _insist(caller, now, deadline)
    if not latch.known.count and not _agree(tally, latch.known):
        # What only some know may be forgotten with them, and then this would have to be counted.
        tally = yield from _insist(caller, tally.at, deadline, _is_noted)
    state, client = latch.known, owner.client_id.encode()
    total = arrivals.begin(state, client, n) if state.count else None
    if total is None:
        return
    try:
        latch.learn(LatchState(state.generation, state.size, {client: total}), tally.at)
        done = partial(arrivals.confirms, state.generation, total)
        tally = yield from _insist(caller, tally.at, deadline, _is_noted, done)
    except BaseException:
        arrivals.fail(state.generation, n)
        raise
    arrivals.confirm(state.generation, total)
    if not latch.known.count and any(told.state.count for _, told in _told(tally)):
        # Each node wakes who waits when it knows by itself that the latch is open.
        yield from tell(Tell(caller.command(latch.known), owner))


def _insist(
    caller: _Caller, now: float, deadline: float, decide: _Decide = _is_known, done: Callable[[], bool] = lambda: False
) -> Steps[Tally]:
    """Exchange until a quorum has answered, or it is done by others.

    Raises:
        QuorumError: The deadline has come.
        KeyTypeError: The key holds a value of another type.
    """
    failures = 0
    while True:
        tally = yield from caller.exchange(now, decide)
        if tally.won or done():
            return tally
        if tally.at >= deadline or caller.foreign(tally) is not None:
            caller.require(tally)
        failures += 1
        now = (yield from wait(_retry(caller, failures, deadline, tally.at))).at


def set_count(session: Session, latch: Latch, owner: Owner, n: int, now: float) -> Steps[bool]:
    """Set it to `n`; return False if it is set and not open.

    Raises:
        QuorumError: Too few nodes answered, or too late; it may have been set all the same.
        AcquireTimeout: Others were setting or deleting it all the time.
        KeyTypeError: The key holds a value of another type.
    """
    return (yield from _set_anew(session, latch, owner, n, now))


def delete(session: Session, latch: Latch, owner: Owner, now: float) -> Steps[None]:
    """Let it be as if never set; whoever waits for it is released.

    Raises:
        QuorumError: Too few nodes answered, or too late; it may have been deleted all the same.
        AcquireTimeout: Others were setting or deleting it all the time.
        KeyTypeError: The key holds a value of another type.
    """
    yield from _set_anew(session, latch, owner, 0, now)


def _set_anew(session: Session, latch: Latch, owner: Owner, size: int, now: float) -> Steps[bool]:
    """Begin a new generation; one of size 0 replaces whatever there is, others only what is open."""
    caller = _Caller(session, latch, owner, session.timing.restart_guard)
    state, tally = yield from caller.consult(now, _may_set)
    if state.count and size:
        return False
    keys = latch.keys.setting
    demand = Demand(latch.name, FENCED_LOCK, keys, owner, Receipt(), _SETTING, 2 * _SETTING)
    claim = FencedClaim(session, demand, Fence(keys, state.generation))
    hold = yield from acquire_new(session, demand, claim, tally.at, tally.at)
    if hold is None:
        raise AcquireTimeout(latch.name, 2 * _SETTING)
    try:
        # Again: others may have set it meanwhile.
        state, tally = yield from caller.consult(tally.at, _may_set)
        if state.count and size:
            return False
        generation = hold.fencing_token
        assert generation is not None, "it is a fenced lock"
        if hold.valid(tally.at):
            latch.learn(LatchState(generation, size), tally.at)
            # Nothing was set after it that they may have forgotten.
            latch.settled = list(latch.lives.values())
            tally = yield from caller.exchange(tally.at, _is_noted)
            caller.require(tally)
        if not hold.valid(tally.at):
            # Who has the lock since may have found the latch as it was before, and set it too.
            raise no_quorum(latch.name, tally, "latch")
        return latch.known.generation == generation
    finally:
        yield from give_back(session, hold)
