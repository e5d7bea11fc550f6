"""The rate limiter: never more than so many successes in any window. Why that is exact is told in `windows`.

It is a semaphore whose permits are never given back: what asks for slots, undoes and waits is the same, see
`slot_claims`.
What is left to do here is to tidy up behind a success, and to tell when the next one can be.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from redsync._core.claims import ClaimKind
from redsync._core.effects import Command, Steps, Tell, tell
from redsync._core.ownership import Owner
from redsync._core.runner import Session
from redsync._protocols import semaphore
from redsync._protocols.acquire_requests import AcquireRequest
from redsync._protocols.semaphore import Look, Pool, survey
from redsync._protocols.slot_claims import WindowClaim
from redsync._protocols.windows import Window

__all__ = ["RATE", "acquire", "retry_after"]

RATE = ClaimKind.of("semaphore", b"zset", label="rate limiter")

_MORE = 64
"""So many permits more than are wanted are asked for: those that run out first may be others on other nodes."""


def acquire(session: Session, request: AcquireRequest, pool: Pool, window: Window, now: float) -> Steps[bool]:
    """Take permits that count now; return whether there was room.

    Interrupted before it has succeeded it leaves nothing behind; after that they count, whoever hears of it.

    Raises:
        QuorumError: Too few nodes answered: at once for one try, else at the deadline.
        KeyTypeError: The key holds a value of another type.
        ConfigurationError: The nodes have another limit.
    """
    claim = WindowClaim(session, request, pool.limit, window)
    state = yield from semaphore.claim_slots(session, request, claim, pool.limit, now)
    if state is None:
        return False
    queued = claim.has_queued
    if queued or (state.tally is not None and state.mismatched(state.tally.all_votes)):
        # A node that granted other slots, or none, shall hold nobody up: neither by them nor by our place in line.
        rest = Command(request.kind.release, request.keys.all, (state.claim, state.count, state.rest))
        # The time of slots runs out. But a node that hangs, or is owed a rollback that gives the place back, would keep
        # that for one who was served: so this is owed to it for as long as that.
        owed_to = state.touched if queued else 0
        yield from tell(Tell(rest, request.owner, owed_to, state.kept_until))
    return True


def retry_after(session: Session, pool: Pool, owner: Owner, window: Window, wanted: int) -> Steps[float]:
    """Return in how many seconds there is room for so many, unless others come; 0.0: there is now.

    Raises:
        QuorumError: Too few nodes answered.
        KeyTypeError: The key holds a value of another type.
        ConfigurationError: The nodes have another limit.
    """
    # What a node has forgotten looks like room, but it grants nothing there.
    looks, tally = yield from survey(session, pool, owner, holders=wanted + _MORE, guard=window.guard)
    # Whoever waits is served first.
    awaited = max(look.awaited for look in looks)
    rounds, last = divmod(awaited + wanted - 1, pool.limit.permits)
    left = _free_in(looks, pool.limit.permits, tally.quorum, last + 1)
    longest, _ = window.terms()
    # Permits of which nothing was told may last as long as any. Those of others may last for longer than ours would.
    left = (left if math.isfinite(left) else longest) + rounds * longest
    # They may look that much later than they could be served, if others have left the line.
    return window.retry_after(left) + (window.longest_pause(1.0, awaited / pool.limit.permits) if awaited else 0.0)


def _free_in(looks: Iterable[Look], permits: int, quorum: int, wanted: int) -> float:
    """Return in how many seconds so many slots are free, the same ones on each node of a quorum.

    A node gives all that is wanted or nothing. So it takes one quorum for all of them, here the nodes that have room
    first; it is not enough if each slot is free on some quorum.
    """
    nodes = []
    for look in looks:
        left = dict.fromkeys(look.taken, math.inf)
        left.update((slot, remaining) for _, slots, remaining, _ in look.holders for slot in slots)
        nodes.append([left.get(slot, 0.0) for slot in range(permits)])
    nodes.sort(key=lambda left: sorted(left)[wanted - 1])
    common: list[float] = [max(times) for times in zip(*nodes[:quorum], strict=True)]
    return sorted(common)[wanted - 1]
