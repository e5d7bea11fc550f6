"""Code that all synchronizers with leases share: rolling back, losing, and sleeping until a hold ends."""

from __future__ import annotations

import math
from collections.abc import Callable

from redsync._core.claims import ClaimKind
from redsync._core.effects import Command, Steps, Tell, Wait, notify, signal, tell, wait
from redsync._core.events import HoldLost
from redsync._core.holds import HoldState
from redsync._core.keys import LockKeys
from redsync._core.ownership import Owner

__all__ = ["expire", "lose", "rollback", "rollback_of", "tell_end", "wait_end"]


def rollback(
    kind: ClaimKind,
    keys: LockKeys,
    owner: Owner,
    claim: bytes,
    *,
    leave: bool,
    owed_to: int,
    owed_until: float,
) -> Tell:
    """Return the effect that drops a claim, and a place in the queue if `leave`, on all nodes."""
    command = Command(kind.abandon, keys.all, (claim, int(leave)))
    return Tell(command, owner, owed_to, owed_until)


def rollback_of(state: HoldState, *, leave: bool) -> Tell:
    """Return the effect that drops a hold's claim on all nodes that may keep it."""
    touched, until = state.touched, state.kept_until
    return rollback(state.kind, state.keys, state.owner, state.claim, leave=leave, owed_to=touched, owed_until=until)


def lose(state: HoldState, reason: str) -> Steps[None]:
    """End a hold that may no longer be believed: once, permanently, on every node, and with a notice."""
    if state.lost is not None or not state.live:
        return
    state.lost = reason
    try:
        # The owner may still have a place on a node that was not asked, or refused, while the others granted.
        yield from tell(rollback_of(state, leave=True))
    finally:
        # Even after an interruption the application must learn of the loss.
        try:
            yield from tell_end(state)
        finally:
            yield from notify(HoldLost(state.name, state.holder, reason, state))


def expire(state: HoldState) -> Steps[None]:
    """End a hold whose validity is over; the reason does not depend on the caller, or on how late it is."""
    ended_by_max_hold = state.valid_until >= state.ends_at
    yield from lose(state, "its max_hold is over" if ended_by_max_hold else "its lease ended without a renewal")


def wait_end(state: HoldState, released: Callable[[], bool], now: float, timeout: float | None) -> Steps[None]:
    """Sleep until the hold is lost, this acquisition of it is `released`, or the timeout is over."""

    def over() -> bool:
        return released() or not state.live or state.lost is not None

    deadline = math.inf if timeout is None else now + timeout
    state.watchers += 1
    try:
        while not over() and now < min(deadline, state.valid_until):
            until = min(deadline, state.valid_until)
            sleep = Wait(until, state.end_key, unless=over)
            now = (yield from wait(sleep)).at
    finally:
        state.watchers -= 1
    if not over() and now >= state.valid_until:
        yield from expire(state)


def tell_end(state: HoldState) -> Steps[None]:
    """Wake the sleepers that wait for the end of the hold, or of one of its acquisitions."""
    if state.watchers:
        yield from signal(state.end_key)
