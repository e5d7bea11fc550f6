"""The rate limiter: at most `rate` successes in any window. `windows` explains why that is exact.

It is a semaphore whose permits are never released: it asks for slots, rolls back and waits in the same way, see
`slot_claims`. This module adds several rates under one name, and tells when the next success is possible.

**Several rates** are as many pools of slots. An acquire reserves slots in the longest window first, then in the next,
and counts once it has those of the shortest (see `WindowClaim`); if a rate refuses it, it returns what it has
reserved. In this order it may wait long before it has reserved anything, and keeps a permit of a day's thousand while
it waits a second for the other rate. All acquires have the same order, so none waits for one that waits for it.

**A changed rate** is a limit with a version, as of a semaphore that was resized. *In any window there are at most as
many successes as the rate of the newest version under which any of them was granted*, by the proof in `shrinking`: let
Y be the latest success of a window, and X another one. Each node of X's quorum keeps X's slot until `per` after X, so
it still does when it grants Y, as it would a permit that is believed. Slots that a claim has under an older version
never count under a newer one: it starts over with another claim.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

from redsync._core.effects import Steps, tell
from redsync._core.holds import Owner
from redsync._core.permits import MAX_PERMITS, PermitState
from redsync._core.session import Session
from redsync._protocols.acquiring import acquire_new
from redsync._protocols.claims import AcquireRequest
from redsync._protocols.holding import rollback_of
from redsync._protocols.semaphore import SEMAPHORE, Look, Pool, survey
from redsync._protocols.semaphore import available as available_of
from redsync._protocols.slot_claims import OvertakenError, WindowClaim, WindowQueue
from redsync._protocols.windows import Window

__all__ = ["RATE", "Rate", "acquire", "available", "cancel", "retry_after"]

RATE = SEMAPHORE._replace(label="rate limiter", queue=WindowQueue)

_MORE = 64
"""The number of permits to look at besides those wanted: different ones may run out first on different nodes."""


class Rate(NamedTuple):
    """One rate of a limiter, as one object of this client knows it.

    Attributes:
        pool: Its slots.
        window: Computes how long its successes last.
    """

    pool: Pool
    window: Window


def acquire(
    session: Session, request: AcquireRequest, now: float, rates: Sequence[Rate]
) -> Steps[Sequence[PermitState] | None]:
    """Acquire permits of all rates, shortest window first, that count now; return them, or None if there was no room.

    An acquire that is interrupted before its success leaves nothing behind. After its success the permits count, even
    if the caller never learns of it.

    Raises:
        QuorumError: Too few nodes answered: at once for one try, else at the deadline or outage timeout.
        KeyTypeError: The key holds a value of another type.
        ConfigurationError: The nodes have another limit.
    """
    claims: list[WindowClaim] = []
    for pool, window in reversed(rates[1:]):
        claims.append(WindowClaim(session, replace(request, keys=pool.keys), pool.limit, window, reserves=True))
    claims.append(WindowClaim(session, request, rates[0].pool.limit, rates[0].window, others=tuple(claims)))
    deadline, again = request.deadline(now), False
    while True:
        try:
            return (yield from _acquire_all(claims, now, deadline, again=again))
        except OvertakenError as overtaken:
            now, again = overtaken.at, True
            if now >= deadline and overtaken.reason is not None:
                raise overtaken.reason from None
        if now >= deadline:
            return None


def _acquire_all(
    claims: Sequence[WindowClaim], now: float, deadline: float, *, again: bool
) -> Steps[Sequence[PermitState] | None]:
    try:
        for number, claim in enumerate(claims):
            if (number or again) and deadline < math.inf:
                claim.request.timeout = max(deadline - now, 0.0)
            if (yield from acquire_new(claim, now)) is None:
                yield from _drop(claims[:-1])
                return None
            now = claim.won_at
    except BaseException:
        # Perhaps again: an interruption may have struck before a byte was sent.
        yield from _drop(claims[:-1])
        raise
    return [claim.reserved for claim in claims if claim.reserved is not None]


def _drop(reserved: Sequence[WindowClaim]) -> Steps[None]:
    """Return the slots that these claims have reserved."""
    for claim in reserved:
        if (state := claim.reserved) is not None:
            yield from tell(rollback_of(state, leave=True))
            claim.request.state = None


def cancel(permits: Sequence[PermitState]) -> Steps[None]:
    """Return the permits of a success, because its calls were not made; does no more the second time.

    A rollback drops the claim of that success alone, however late it comes. So it is no risk to send it too often.
    """
    try:
        for state in permits:
            yield from tell(rollback_of(state, leave=True))
    except BaseException:
        # Again: the interruption may have struck before a byte was sent.
        for state in permits:
            yield from tell(rollback_of(state, leave=True))
        raise
    for state in permits:
        state.limit.released.append(state.slots[0])


def available(session: Session, rates: Sequence[Rate], owner: Owner) -> Steps[int]:
    """Return how many permits all rates allow now.

    Raises:
        QuorumError: Too few nodes answered.
        KeyTypeError: The key holds a value of another type.
        ConfigurationError: The nodes have another limit.
    """
    # A success that nodes forgot counts until its window ends, and nothing restores it there.
    found = []
    for pool, window in rates:
        found.append((yield from available_of(session, pool, owner, window.guard)))
    return min(found)


def retry_after(session: Session, rates: Sequence[Rate], owner: Owner, wanted: int) -> Steps[float]:
    """Return in how many seconds there is room for `wanted` permits, unless others come; 0.0 if there is room now.

    Never more than the window, the drift allowance and 5 ms: by then all permits taken now have run out. If more
    acquires wait than one window serves, that is when to ask again.

    Raises:
        QuorumError: Too few nodes answered.
        KeyTypeError: The key holds a value of another type.
        ConfigurationError: The nodes have another limit.
    """
    seconds = 0.0
    for pool, window in rates:
        seconds = max(seconds, (yield from _room_in(session, pool, owner, window, wanted)))
    return seconds


def _room_in(session: Session, pool: Pool, owner: Owner, window: Window, wanted: int) -> Steps[float]:
    # A node that forgot would report taken slots as free, but grants nothing.
    looks = yield from survey(session, pool, owner, holders=wanted + _MORE, guard=window.guard)
    # Waiters are served first. If there are many, the nodes have listed too few permits.
    awaited, permits = max(look.awaited for look in looks), pool.limit.permits
    if _MORE < awaited <= permits - wanted:
        looks = yield from survey(session, pool, owner, holders=awaited + wanted + _MORE, guard=window.guard)
    left = _free_in(looks, permits, session.quorum, awaited + wanted) if awaited + wanted <= permits else math.inf
    return window.room_after(left)


def _free_in(looks: Collection[Look], permits: int, quorum: int, wanted: int) -> float:
    """Return in how many seconds `wanted` slots are free, the same ones on each node of a quorum.

    A node grants all slots that an ask wants, or none. So all of them must be free on one quorum, here the nodes that
    have room first. It is not enough that each slot is free on some quorum.
    """
    # Where others have the slots of a success, a node gives them to it once they are free, see `semaphore_confirm`.
    due: dict[str, set[int]] = {}
    for look in looks:
        for permit, slots, _, _ in look.holders:
            due.setdefault(permit, set()).update(slots)
    nodes = []
    for look in looks:
        left = dict.fromkeys(look.taken, math.inf)
        left.update((slot, remaining) for _, slots, remaining, _ in look.holders for slot in slots)
        for permit, _, remaining, _ in look.holders:
            left.update((slot, max(left.get(slot, 0.0), remaining)) for slot in due[permit])
        nodes.append(left)
    # Each slot beyond a rate that was lowered takes one below, see `shrinking`.
    beyond = {slot for left in nodes for slot in left if permits <= slot < MAX_PERMITS}
    first = len(beyond) + wanted - 1
    times = [[left.get(slot, 0.0) for slot in (*range(permits), *beyond)] for left in nodes]
    times.sort(key=lambda left: sorted(left)[first])
    common: list[float] = [max(each) for each in zip(*times[:quorum], strict=True)]
    return sorted(common)[first]
