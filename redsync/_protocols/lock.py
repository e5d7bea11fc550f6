"""The reentrant lock: it differs from other claims in its re-entry.

An acquire that finds no hold of its owner asks for a *new* claim, and wins with a quorum of GRANTED. An acquire that
finds one is a *re-entry*, and wins only with a quorum of nodes that had the claim already: so it never re-wins a lost
lock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from redsync._core.effects import Broadcast, Steps, broadcast, tell
from redsync._core.holds import HoldState
from redsync._core.local_queues import RETRIES
from redsync._core.quorum import Tally, thoroughly
from redsync._core.scripts import ClaimKind, Command, Script
from redsync._core.session import Session
from redsync._core.timing import milliseconds
from redsync._protocols.acquiring import acquire_new
from redsync._protocols.answers import EXISTING, no_quorum, read_by_arrival
from redsync._protocols.claims import AcquireRequest, Claim, register_on_lost
from redsync._protocols.holding import check, lose, rollback_of

__all__ = ["FAIR_LOCK", "LOCK", "acquire"]

LOCK = ClaimKind.of("lock", b"hash")

FAIR_LOCK = LOCK._replace(noun="fair_lock", acquire=Script.load("fair_lock_acquire"))
"""The fair lock: the claim and re-entry of the reentrant lock, with a queue by ticket; see `queue_policies`."""


def _is_existing(reply: Any) -> bool:
    # To an ask without a place, all kinds of locks reply alike; by ticket, a refusal also has the highest ticket.
    return read_by_arrival(reply) == EXISTING


def acquire(
    session: Session, request: AcquireRequest, now: float, claims: Callable[[Session, AcquireRequest], Claim] = Claim
) -> Steps[HoldState | None]:
    """Acquire the lock; return the hold, or None if others held it all the time.

    `claims` makes the claim of a new acquire.

    Raises:
        LeaseLostError: The owner held the lock, and that hold is lost.
        QuorumError: Too few nodes answered: at once for one try, else at the deadline.
        KeyTypeError: The key holds a value of another type.
    """
    return acquire_new(claims(session, request), now, _reenter)


def _reenter(session: Session, request: AcquireRequest, state: HoldState, now: float) -> Steps[float]:
    """Acquire again a lock that this owner holds; return the instant of the answer.

    Whatever happens, earlier acquisitions stay unchanged. If the hold is not live any more, because meanwhile another
    thread released the last acquisition through a Hold object, the re-entry was rolled back.
    """
    lease, deadline = state.lease if request.lease is None else request.lease, request.deadline(now)
    failures, waiter = 0, request.owner.claim(next(session.claims))
    try:
        while state.live:
            yield from check(state, now)
            tally = yield from _ask_again(session, request, state, now, lease)
            now = tally.at
            if not state.live:
                break
            if tally.refused > len(tally.nodes) - tally.quorum:
                yield from lose(state, f"{tally.refused} of {len(tally.nodes)} nodes no longer keep the claim")
            yield from check(state, now)
            if tally.won:
                state.lengthen(session.timing.valid_until(tally.sent_at, lease))
                register_on_lost(state, request)
                session.holds.watch(state)
                state.count += request.holds
                request.state = state
                break
            if now >= deadline:
                raise no_quorum(request.name, tally)
            failures += 1
            until = min(deadline, state.valid_until)
            now = yield from session.queues.retry(waiter, failures, session.random(), now, until)
    finally:
        yield from session.queues.leave_queues(waiter, RETRIES)
    return now


def _ask_again(session: Session, request: AcquireRequest, state: HoldState, now: float, lease: float) -> Steps[Tally]:
    """Ask all nodes for a higher hold count; roll that back if the hold was released meanwhile."""
    args = (state.claim, state.count + request.holds, milliseconds(lease), 0)
    timeout = session.timing.round_timeout(lease)
    command = Command(request.kind.acquire, (request.keys.lock,), args)
    try:
        tally = yield from broadcast(Broadcast(command, request.owner, _is_existing, timeout, decide=thoroughly))
        state.note_sent(tally.sent, tally.at + lease)
    except BaseException:
        state.note_sent(session.all_nodes, now + timeout + lease)
        raise
    finally:
        if not state.live:
            yield from tell(rollback_of(state, leave=False))
    return tally
