"""The fenced lock: the claim and re-entry of the reentrant lock, with grants that carry tokens; see `tokens`."""

from __future__ import annotations

from functools import partial

from redsync._core.effects import Steps
from redsync._core.holds import HoldState
from redsync._core.runner import Session
from redsync._core.scripts import Script
from redsync._protocols import lock
from redsync._protocols.acquire_requests import AcquireRequest
from redsync._protocols.tokens import Fence, FencedClaim
from redsync.exceptions import KeyTypeError

__all__ = ["FENCED_LOCK", "acquire"]

FENCED_LOCK = lock.LOCK._replace(noun="fenced_lock", acquire=Script.load("fenced_lock_acquire"))


def acquire(session: Session, request: AcquireRequest, fence: Fence, now: float) -> Steps[HoldState | None]:
    """Acquire the lock; return the hold, which has a token, or None if others held it all the time.

    Raises:
        LeaseLostError: The owner held the lock, and that hold is lost.
        QuorumError: Too few nodes answered, or too few still kept the claim when the client wrote the token back.
        KeyTypeError: The key holds a value of another type, or the owner holds a plain lock of this name.
    """
    held = request.owner.holds.get(request.keys.hold)
    if held is not None and held.kind is not FENCED_LOCK:
        sentence = f"lock {request.name!r} is held already, but not as a fenced lock: it has no token"
        raise KeyTypeError(request.name, sentence)
    return lock.acquire(session, request, now, partial(FencedClaim, fence=fence))
