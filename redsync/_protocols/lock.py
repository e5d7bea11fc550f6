"""The reentrant lock: its owner may acquire it again, and must release it as often.

An acquire that finds no hold of its owner asks for a *new* claim, and wins with a quorum of GRANTED. An acquire that
finds one is a *re-entry*. It counts one more acquisition of that hold, if the hold may be believed: so it never re-wins
a lost lock. It waits for no node, unless it has its own lease: with that it extends the hold. Nodes get the count, for
people to read.
"""

from __future__ import annotations

from collections.abc import Callable

from redsync._core.effects import Steps, Tell, tell
from redsync._core.holds import HoldState
from redsync._core.scripts import ClaimKind, Script
from redsync._core.session import Session
from redsync._protocols.acquiring import acquire_new
from redsync._protocols.claims import AcquireRequest, Claim
from redsync._protocols.holding import check
from redsync._protocols.queue_policies import FifoByArrival, FifoByTicket
from redsync._protocols.renewal import extend

__all__ = ["FAIR_LOCK", "LOCK", "acquire"]

LOCK = ClaimKind.of("lock", b"hash")._replace(queue=FifoByArrival)

FAIR_LOCK = LOCK._replace(queue=FifoByTicket, acquire=Script.load("fair_lock_acquire"))
"""The fair lock: the claim and re-entry of the reentrant lock, with a queue by ticket; see `queue_policies`."""


def acquire(
    session: Session, request: AcquireRequest, now: float, claims: Callable[[Session, AcquireRequest], Claim] = Claim
) -> Steps[HoldState | None]:
    """Acquire the lock; return the hold, or None if others held it all the time.

    `claims` makes the claim of a new acquire. If a re-entry raises an error after it was counted, `request.state` says
    so, as for an interrupted acquire.

    Raises:
        LeaseLostError: The owner held the lock, and that hold is lost.
        QuorumError: Too few nodes answered: at once for one try or a re-entry, else at the deadline or outage timeout.
        KeyTypeError: The key holds a value of another type.
    """
    state = request.owner.holds.get(request.keys.hold)
    if state is None:
        return (yield from acquire_new(claims(session, request), now))
    yield from check(state, now)
    # No call between these: an interrupted caller sees in the request what to undo.
    if request.on_lost is not None:
        state.on_lost += [request.on_lost]
    request.nested = True
    state.count += request.holds
    request.state = state
    if request.lease is None:
        yield from tell(Tell(state.count_command(), state.owner))
    else:
        yield from extend(session, state, request.lease, now)
    return state
