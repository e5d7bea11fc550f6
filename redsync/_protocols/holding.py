"""Having a hold: check whether it may be believed, release it, lose it, sleep until its end. Shared by all claims."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from redsync._core.effects import Broadcast, Steps, Tell, Wait, broadcast, notify, signal, tell, wait
from redsync._core.holds import HoldState, Owner
from redsync._core.keys import LockKeys
from redsync._core.observing import HoldLost
from redsync._core.quorum import Tally, thoroughly
from redsync._core.scripts import ClaimKind, Command
from redsync._core.session import Session
from redsync._core.timing import milliseconds
from redsync._protocols.observed import tell_observers
from redsync.exceptions import LeaseLostError, NotOwnedError

__all__ = [
    "check",
    "expire",
    "give_back",
    "had",
    "lose",
    "release",
    "rollback",
    "rollback_of",
    "tell_rest",
    "wait_end",
    "wake_end_waiters",
    "what_of",
]


def had(reply: Any) -> bool:
    """Read a reply to a release: whether the node kept the claim.

    Raises:
        ValueError: It is not such a reply.
    """
    if reply.__class__ is not int or reply not in (0, 1):
        raise ValueError("the reply to a release is 1 or 0")
    return bool(reply)


def rollback(
    kind: ClaimKind,
    keys: LockKeys,
    owner: Owner,
    claim: bytes,
    *,
    leave: bool,
    deliver_to: int,
) -> Tell:
    """Return the effect that drops a claim, and a place in the queue if `leave`, on all nodes."""
    tell_redisson = (keys.channel,) if kind.value_type == b"hash" else ()
    command = Command(kind.abandon, keys.all, (claim, 0 if leave else -1, *tell_redisson))
    return Tell(command, owner, deliver_to)


def rollback_of(state: HoldState, *, leave: bool) -> Tell:
    """Return the effect that drops a hold's claim on all nodes that may keep it."""
    return rollback(state.kind, state.keys, state.owner, state.claim, leave=leave, deliver_to=state.may_keep)


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
            yield from wake_end_waiters(state)
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
    state.end_waiters += 1
    try:
        while not over() and now < min(deadline, state.valid_until):
            until = min(deadline, state.valid_until)
            sleep = Wait(until, state.end_key, unless=over)
            now = (yield from wait(sleep)).at
    finally:
        state.end_waiters -= 1
    if not over() and now >= state.valid_until:
        yield from expire(state)


def wake_end_waiters(state: HoldState) -> Steps[None]:
    """Wake the sleepers that wait for the end of the hold, or of one of its acquisitions."""
    if state.end_waiters:
        yield from signal(state.end_key)


def check(state: HoldState, now: float) -> Steps[None]:
    """Return if the hold may be believed at that instant.

    Raises:
        LeaseLostError: It may not.
    """
    if state.lost is None and now >= state.valid_until:
        yield from expire(state)
    if state.lost is not None:
        raise _lost(state)


def release(
    session: Session,
    state: HoldState,
    now: float,
    holds: int = 1,
    on_lost: Callable[[HoldState], object] | None = None,
) -> Steps[None]:
    """Release `holds` acquisitions with one command; also forget `on_lost`, which came with the last one.

    The release of all waits for the hold's `keep_until`.

    Raises:
        LeaseLostError: The hold had been lost; its acquisitions are released anyway.
        NotOwnedError: Another thread released them first.
    """
    if session.observed:
        return tell_observers(state, _release(session, state, now, holds, on_lost))
    return _release(session, state, now, holds, on_lost)


def _release(
    session: Session, state: HoldState, now: float, holds: int, on_lost: Callable[[HoldState], object] | None
) -> Steps[None]:
    if now < state.keep_until and state.count == holds and state.lost is None:
        yield from _keep(session, state, now, on_lost)
        if state.left:
            return
    if state.count < holds:
        raise NotOwnedError(state.name, f"{what_of(state)} was released already")
    try:
        state.count -= holds
        state.released += holds
        if state.lost is None and now >= state.valid_until:
            yield from expire(state)
        if not state.count:
            session.holds.remove(state)
        elif state.on_lost:
            state.forget_callback(on_lost)
        if state.lost is not None:
            raise _lost(state)
        command, count = state.count_command(), state.count
        if count and state.kind.is_threads:
            yield from tell(Tell(command, state.owner))  # for people to read
            return
        tally = yield from broadcast(
            Broadcast(
                command,
                state.owner,
                had,
                session.timing.round_timeout(state.lease),
                deliver_to=state.may_keep,
                decide=thoroughly,
            )
        )
        if not tally.won and state.count == count:  # else another release may have come first
            yield from _accept_minority(state, tally)
    except BaseException as error:
        yield from _break_off(session, state, error)
        raise
    finally:
        if state.end_waiters:
            yield from wake_end_waiters(state)


def _keep(session: Session, state: HoldState, now: float, on_lost: Callable[[HoldState], object] | None) -> Steps[None]:
    """Wait for the hold's `keep_until`, or leave it; an interruption ends the wait, but frees nothing.

    Of a hold that its owner has acquired again meanwhile, only the acquisitions to release end.
    """
    count, until = state.count, state.keep_until
    try:
        if until > state.valid_until:
            # From now on not even the end of this process frees it earlier.
            state.may_keep |= session.all_nodes
            yield from tell(Tell(state.renewal_of([state], [milliseconds(until - now)]), state.owner))
        if not state.hurried:
            yield from wait_end(state, lambda: state.count < count, now, until - now)
        elif state.count == count:
            yield from _leave(session, state)
    except BaseException:
        if state.count > count:
            state.count -= count
            state.released += count
            state.forget_callback(on_lost)
            yield from tell_rest(state)
        else:
            yield from _leave(session, state)
        raise


def _leave(session: Session, state: HoldState) -> Steps[None]:
    """End a hold for its owner; nodes keep the claim until its lease ends."""
    state.left, state.released, state.count = True, state.released + state.count, 0
    session.holds.remove(state)
    yield from wake_end_waiters(state)


def _break_off(session: Session, state: HoldState, error: BaseException) -> Steps[None]:
    """End a release that raised an error."""
    if isinstance(error, LeaseLostError) and state.lost is not None:
        return  # its own error: the loss has ended the claim
    # Interrupted, perhaps before a byte was sent.
    if state.count:
        yield from tell_rest(state)
    else:
        # Renewals end, so the nodes must not keep anything.
        session.holds.remove(state)
        yield from tell(rollback_of(state, leave=True))


def tell_rest(state: HoldState) -> Steps[None]:
    """Tell nodes what remains of a hold, without waiting; those that may keep it learn it in any case."""
    yield from tell(Tell(state.count_command(), state.owner, state.may_keep))


def _accept_minority(state: HoldState, tally: Tally) -> Steps[None]:
    # Too few nodes were in reach: the others get the release later, or expire the claim. That is not a loss if the
    # release was sent in time. Neither is it if this release, or a renewal, may have dropped the claim before.
    may_be_ours = state.rolled_back or tally.repeated
    was_taken = tally.refused > len(tally.nodes) - tally.quorum and not may_be_ours
    if not was_taken and tally.sent_at < state.valid_until:
        return
    refused = f"at its release {tally.refused} of {len(tally.nodes)} nodes no longer kept the claim"
    reason = refused if was_taken else "its lease ended before its release was sent"
    if state.live:
        yield from lose(state, reason)
    elif state.lost is None:
        state.lost = reason
        yield from notify(HoldLost(state.name, state.holder, reason, state))
    raise _lost(state)


def give_back(session: Session, state: HoldState, now: float = -math.inf) -> Steps[None]:
    """Release a hold on behalf of its owner, whatever its count, without waiting; leave it before its `keep_until`."""
    end = _leave if now < state.keep_until and state.lost is None else _give_back
    if session.observed:
        return tell_observers(state, end(session, state))
    return end(session, state)


def _give_back(session: Session, state: HoldState) -> Steps[None]:
    try:
        session.holds.remove(state)
        if state.lost is None:
            command = Command(state.kind.release, state.keys.all, (state.claim, 0, state.rest))
            yield from tell(Tell(command, state.owner, state.may_keep))
    except BaseException:
        # Interrupted, perhaps before a byte was sent, and from now on nothing renews or releases the hold.
        session.holds.remove(state)
        if state.lost is None:
            yield from tell(rollback_of(state, leave=True))
        raise
    finally:
        yield from wake_end_waiters(state)


def _lost(state: HoldState) -> LeaseLostError:
    return LeaseLostError(state.name, f"{what_of(state)} was lost: {state.lost}; stop the work it protected")


def what_of(state: HoldState) -> str:
    """Return what the hold is of what, for messages."""
    return f"the {state.what} of {state.kind.label} {state.name!r}"
