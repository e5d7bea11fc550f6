"""The mutex: the canonical Redlock of the Redis documentation, owned by the object that acquired it.

A claim belongs to one request: its value is unique over all clients and all requests, so each acquire has its own
owner. A mutex is not reentrant: a second acquire of the same object finds the first one's value on the nodes, like any
other client.
"""

from __future__ import annotations

import weakref

from redsync._core.effects import Steps
from redsync._core.holds import HoldState, Owner
from redsync._core.session import Session
from redsync._protocols.acquiring import acquire_new
from redsync._protocols.claims import AcquireRequest, Claim
from redsync._protocols.holding import check, give_back, lose
from redsync._protocols.lock import LOCK

__all__ = ["MUTEX", "Possession", "acquire"]

MUTEX = LOCK._replace(value_type=b"string", label="mutex")


class Possession:
    """The hold of one mutex object; guarded by the atomicity of protocol steps.

    Attributes:
        state: The object's last hold; None if it never had one.
        acquired_by: The thread or task that acquired that hold.
    """

    __slots__ = ("__weakref__", "acquired_by", "state")

    def __init__(self) -> None:
        self.state: HoldState | None = None
        self.acquired_by: Owner | None = None

    @property
    def is_held(self) -> bool:
        """True if there is a hold to release, lost or not."""
        return self.state is not None and self.state.count > 0


def acquire(
    session: Session, request: AcquireRequest, now: float, possession: Possession, acquirer: Owner
) -> Steps[HoldState | None]:
    """Acquire the mutex for an object; return the hold, or None if others held it all the time.

    Raises:
        LeaseLostError: The object had the mutex and lost it before a release, which must come first.
        QuorumError: Too few nodes answered: at once for one try, else at the deadline or outage timeout.
        KeyTypeError: The key holds a value of another type.
    """
    last = possession.state
    if last is not None and possession.is_held and last.ended(now):
        yield from check(last, now)
    state = yield from acquire_new(Claim(session, request), now)
    if state is None:
        return None
    last = possession.state
    if last is not None and possession.is_held:
        # The last hold was lost while we waited. Its holder's release must not release our hold instead.
        yield from give_back(session, state)
        request.state = None
        yield from lose(last, "the nodes gave it to another acquire of the same object")
        yield from check(last, now)
    possession.state, possession.acquired_by = state, acquirer
    state.owner.object = weakref.ref(possession)
    return state
