"""The rate limiter: at most `rate` successes in any window. `windows` explains why that is exact.

It is a semaphore whose permits are never released: it asks for slots, rolls back and waits in the same way, see
`slot_claims`. This module tells when the next success is possible.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from redsync._core.effects import Steps
from redsync._core.holds import Owner
from redsync._core.scripts import ClaimKind
from redsync._core.session import Session
from redsync._protocols.acquiring import acquire_new
from redsync._protocols.claims import AcquireRequest
from redsync._protocols.semaphore import Look, Pool, survey
from redsync._protocols.slot_claims import WindowClaim
from redsync._protocols.windows import Window

__all__ = ["RATE", "acquire", "retry_after"]

RATE = ClaimKind.of("semaphore", b"zset", label="rate limiter")

_MORE = 64
"""The number of permits to look at besides those wanted: different ones may run out first on different nodes."""


def acquire(session: Session, request: AcquireRequest, pool: Pool, window: Window, now: float) -> Steps[bool]:
    """Acquire permits that count now; return whether there was room.

    An acquire that is interrupted before its success leaves nothing behind. After its success the permits count, even
    if the caller never learns of it.

    Raises:
        QuorumError: Too few nodes answered: at once for one try, else at the deadline.
        KeyTypeError: The key holds a value of another type.
        ConfigurationError: The nodes have another limit.
    """
    claim = WindowClaim(session, request, pool.limit, window)
    return (yield from acquire_new(claim, now)) is not None


def retry_after(session: Session, pool: Pool, owner: Owner, window: Window, wanted: int) -> Steps[float]:
    """Return in how many seconds there is room for `wanted` permits, unless others come; 0.0 if there is room now.

    Never more than the window, the drift allowance and 5 ms: by then all permits taken now have run out. If more
    acquires wait than one window serves, that is when to ask again.

    Raises:
        QuorumError: Too few nodes answered.
        KeyTypeError: The key holds a value of another type.
        ConfigurationError: The nodes have another limit.
    """
    # A node that forgot would report taken slots as free, but grants nothing.
    looks, tally = yield from survey(session, pool, owner, holders=wanted + _MORE, guard=window.guard)
    # Waiters are served first.
    awaited, permits = max(look.awaited for look in looks), pool.limit.permits
    left = _free_in(looks, permits, tally.quorum, awaited + wanted) if awaited + wanted <= permits else math.inf
    # If others leave the queue, a waiter may look later than nodes could serve it, by up to this pause.
    return window.room_after(left, window.longest_pause(1.0, awaited / permits) if awaited else 0.0)


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
        nodes.append([left.get(slot, 0.0) for slot in range(permits)])
    nodes.sort(key=lambda left: sorted(left)[wanted - 1])
    common: list[float] = [max(times) for times in zip(*nodes[:quorum], strict=True)]
    return sorted(common)[wanted - 1]
