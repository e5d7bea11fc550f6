"""The count-down latch: it opens when it has been counted down to zero, and never because nodes fail.

Nodes' knowledge only grows (see `_core/latches`), so every command is an *exchange*: it tells each node what this
client knows, and the node replies with what it knows then. So repetitions are harmless, and each look repairs nodes
that were down or forgot. `latch_exchange` explains how answers are read, and which count after nodes forgot.

* *Counting down* has succeeded when a quorum knows the client's new total.
* *Setting* needs exclusion: two clients must not both find the latch open and set it. A setter holds a fenced lock,
  whose token is the generation. So a setter that was paused, or died half-way, can't replace a later generation. A
  setter that was paused for longer than the lock lasts does not claim success.
* *Waiting* is for one generation. It is over when that generation is open, or a later one is set, which requires an
  open latch, or one whose setting failed half-way. At every look a waiter restores what nodes forgot, so a node that
  forgets does not release it.

Nodes forget a latch that is unused for `keep` seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from redsync._core.effects import Command, Steps, Tell, Wait, tell, wait
from redsync._core.latches import Arrivals, LatchState
from redsync._core.ownership import Owner
from redsync._core.quorum import Tally, Verdict
from redsync._core.runner import Session
from redsync._core.scripts import Script
from redsync._core.timing import retry_delay
from redsync._protocols.acquire_requests import AcquireRequest, Outcome
from redsync._protocols.acquiring import acquire_new
from redsync._protocols.fenced_lock import FENCED_LOCK
from redsync._protocols.holding import give_back
from redsync._protocols.latch_exchange import PLACE_KEPT, Caller, Latch, agree, is_known, is_noted, may_set, told_by
from redsync._protocols.rounds import gives_up, is_outage, no_quorum
from redsync._protocols.tokens import Fence, FencedClaim
from redsync.exceptions import AcquireTimeout

__all__ = ["Latch", "count_down", "count_left", "delete", "set_count", "wait_open"]

LEAVE = Script.load("latch_leave")

_GRACE = 0.003
"""Seconds to wait for further nodes' wake-ups after the first."""

_SETTING = 5.0
"""The lease in seconds of the lock for setting: several rounds long. If a setter dies, others wait that long."""


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
    caller = Caller(session, latch, owner)
    deadline = math.inf if timeout is None else now + timeout
    awaited, failures, opened, written, was_won = math.inf, 0, False, False, False
    outage_since = math.inf
    try:
        while True:
            cut_short = deadline - now < session.timing.node_timeout
            tally = yield from caller.exchange(now, timeout=deadline - now, waits=True)
            now, state = tally.at, latch.known
            if tally.won:
                opened = state.count == 0 or state.generation > awaited
                awaited = min(awaited, state.generation)
                session.answered = True
            if opened and agree(tally, state):
                return True
            foreign = caller.foreign(tally)
            if foreign is not None:
                raise foreign
            if tally.won and opened and not (written and now >= deadline):
                # The next exchange writes that back, at once, even after the deadline: the latch was seen open.
                written = True
                continue
            if now >= deadline:
                # If the deadline cuts the last round short, it may get no answers. Then the round before decides.
                if not (was_won and cut_short):
                    caller.require(tally)
                return False
            was_won = tally.won
            failures = 0 if tally.won else failures + 1
            if failures:
                outage_since = min(outage_since, tally.sent_at) if is_outage(tally) else math.inf
                if gives_up(session, tally, outage_since):
                    caller.require(tally)
                until = min(deadline, outage_since + session.timing.outage_timeout)
                now = (yield from wait(_retry(caller, failures, until, now))).at
            else:
                outage_since = math.inf
                until = min(deadline, now + 0.5 + session.random())
                now = (yield from wait(Wait(until, caller.wake_key, session.quorum, _GRACE))).at
    finally:
        # Even if the latch was open at once: a node that has not learned of it keeps a place.
        leave = Command(LEAVE, latch.keys.all, (caller.place,))
        yield from tell(Tell(leave, owner, session.all_nodes, now + PLACE_KEPT))


def _retry(caller: Caller, failures: int, deadline: float, now: float) -> Wait:
    """Return the pause after a round that found no quorum."""
    pause = retry_delay(failures, caller.session.random(), shortest=0.02, longest=0.25)
    return Wait(deadline, retry_at=now + pause)


def count_down(session: Session, latch: Latch, owner: Owner, now: float, *, n: int, timeout: float) -> Steps[None]:
    """Count the latch down by `n`; do nothing if it is open, or was never set.

    Raises:
        QuorumError: Too few nodes answered within `timeout` seconds; the client's next call repeats this one.
        KeyTypeError: The key holds a value of another type.
    """
    table, key = session.arrivals, latch.keys.latch
    arrivals = table.setdefault(key, Arrivals())
    arrivals.running += 1
    try:
        yield from _arrive(Caller(session, latch, owner), arrivals, n, now, now + timeout)
    finally:
        arrivals.running -= 1
        if not arrivals.running and not arrivals.doubt:
            table.pop(key, None)


def _arrive(caller: Caller, arrivals: Arrivals, n: int, now: float, deadline: float) -> Steps[None]:
    latch, owner = caller.latch, caller.owner
    tally = yield from _insist(caller, now, deadline)
    if not latch.known.count and not agree(tally, latch.known):
        # If only some nodes know that it is open, they may forget it, and then this call would have to count.
        tally = yield from _insist(caller, tally.at, deadline, is_noted)
    state, client = latch.known, owner.client_id.encode()
    total = arrivals.begin(state, client, n) if state.count else None
    if total is None:
        return
    try:
        latch.learn(LatchState(state.generation, state.size, {client: total}), tally.at)
        done = partial(arrivals.confirms, state.generation, total)
        tally = yield from _insist(caller, tally.at, deadline, is_noted, done)
    except BaseException:
        arrivals.fail(state.generation, n)
        raise
    arrivals.confirm(state.generation, total)
    if not latch.known.count and any(told.state.count for _, told in told_by(tally)):
        # A node wakes its waiters only once it knows itself that the latch is open.
        yield from tell(Tell(caller.command(latch.known), owner))


def _insist(
    caller: Caller,
    now: float,
    deadline: float,
    decide: Callable[[Tally], Verdict] = is_known,
    done: Callable[[], bool] = lambda: False,
) -> Steps[Tally]:
    """Exchange until `decide` is satisfied, or `done` returns True because others have done it.

    Raises:
        QuorumError: The deadline has passed.
        KeyTypeError: The key holds a value of another type.
    """
    failures = 0
    while True:
        tally = yield from caller.exchange(now, decide, timeout=deadline - now)
        if tally.won or done():
            return tally
        if tally.at >= deadline or caller.foreign(tally) is not None:
            caller.require(tally)
        failures += 1
        now = (yield from wait(_retry(caller, failures, deadline, tally.at))).at


def set_count(session: Session, latch: Latch, owner: Owner, n: int, now: float) -> Steps[bool]:
    """Set the latch to `n`; return False if it is set and not open.

    Raises:
        QuorumError: Too few nodes answered, or too late; the latch may be set nevertheless.
        AcquireTimeout: Others were setting or deleting the latch all the time.
        KeyTypeError: The key holds a value of another type.
    """
    return (yield from _set_anew(session, latch, owner, n, now))


def delete(session: Session, latch: Latch, owner: Owner, now: float) -> Steps[None]:
    """Reset the latch, as if it had never been set, which releases all its waiters.

    Raises:
        QuorumError: Too few nodes answered, or too late; the latch may be deleted nevertheless.
        AcquireTimeout: Others were setting or deleting the latch all the time.
        KeyTypeError: The key holds a value of another type.
    """
    yield from _set_anew(session, latch, owner, 0, now)


def _set_anew(session: Session, latch: Latch, owner: Owner, size: int, now: float) -> Steps[bool]:
    """Begin a new generation; return whether it is now in force.

    A generation of size 0 replaces any other one; others replace only an open one.
    """
    caller = Caller(session, latch, owner, session.timing.restart_guard)
    state, tally = yield from caller.consult(now, may_set)
    if state.count and size:
        return False
    keys = latch.keys.setting
    request = AcquireRequest(latch.name, FENCED_LOCK, keys, owner, Outcome(), _SETTING, 2 * _SETTING)
    claim = FencedClaim(session, request, Fence(keys, state.generation))
    hold = yield from acquire_new(session, request, claim, tally.at)
    if hold is None:
        raise AcquireTimeout(latch.name, 2 * _SETTING)
    try:
        # Look again: others may have set the latch meanwhile.
        state, tally = yield from caller.consult(tally.at, may_set)
        if state.count and size:
            return False
        generation = hold.fencing_token
        assert generation is not None, "it is a fenced lock"
        if hold.valid(tally.at):
            latch.learn(LatchState(generation, size), tally.at)
            # Nodes that forgot can't have known a later generation, because there is none.
            latch.settled = list(latch.lives.values())
            tally = yield from caller.exchange(tally.at, is_noted)
            caller.require(tally)
        if not hold.valid(tally.at):
            # The next holder of the lock may have seen the latch before this setting, and set it too.
            raise no_quorum(latch.name, tally, "latch")
        return latch.known.generation == generation
    finally:
        yield from give_back(session, hold)
