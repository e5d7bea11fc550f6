"""Lining up: how one waits inside the process while the front of its crowd waits in the nodes' queues; see `crowds`.

Whoever is behind has asked no node. If its time is up then, others of this client were told that the lock is held, and
it was not its turn: that is an answer. Unless the front found no quorum; then it asks once itself.
"""

from __future__ import annotations

from collections.abc import Hashable

from redsync._core.crowds import FRONT
from redsync._core.effects import Steps, Wait, signal, wait
from redsync._core.runner import Session
from redsync._protocols.demands import Demand

__all__ = ["call_forward", "crowd_of", "line_up"]

_LONGEST_SLEEP = 30.0
"""Seconds after which one that is behind looks by itself: an interruption of another may have cost its wake-up."""


def crowd_of(session: Session, demand: Demand) -> Hashable:
    """Return what those have in common that wait for the same; None for one that waits by itself.

    So does whoever only tries; and where the order begins with a place on the nodes, or readers come in together.
    """
    if session.crowds.under_way <= FRONT:
        return None
    kind = demand.kind
    if demand.timeout == 0 or kind.by_ticket or kind.mode or demand.bid is not None or demand.backoff is not None:
        return None
    # Some may wait in vain where others need not: for a lease that is too short for these nodes, say.
    return demand.keys.lock if demand.lease is None else (demand.keys.lock, demand.lease)


def line_up(
    session: Session, demand: Demand, crowd: Hashable, now: float, deadline: float
) -> Steps[tuple[float, bool]]:
    """Sleep until it is in front, or its time is up; return the instant, and whether it may ask."""
    crowds, owner = session.crowds, demand.owner

    def in_front() -> bool:
        return crowds.is_in_front(crowd, owner.wire)

    # Entered again each time: the owner's own acquire in a signal's handler has left the crowd for both.
    while not crowds.enter(crowd, owner.wire) and now < deadline:
        until = min(deadline, now + _LONGEST_SLEEP)
        now = (yield from wait(Wait(until, _turn_key(owner.wire, demand), unless=in_front))).at
    return now, in_front() or crowd in crowds.mute


def call_forward(demand: Demand, follower: bytes) -> Steps[None]:
    """Wake one that is in front now."""
    key = _turn_key(follower, demand)
    try:
        yield from signal(key)
    except BaseException:
        # The interruption may have come first.
        yield from signal(key)
        raise


def _turn_key(waiter: bytes, demand: Demand) -> bytes:
    return waiter + b" may ask for " + demand.keys.lock
