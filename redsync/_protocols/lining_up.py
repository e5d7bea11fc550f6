"""Lining up: an acquire waits inside the process while the front of its crowd waits in the nodes' queues; see `crowds`.

An acquire behind the front has asked no node. When its timeout is over, it returns as if refused: nodes have told the
front that others hold the lock. If the front found no quorum, the acquire asks once itself; so it does when the front
has found none for the outage timeout.
"""

from __future__ import annotations

import math
from collections.abc import Hashable

from redsync._core.crowds import FRONT, Crowds
from redsync._core.effects import Steps, Wait, signal, wait
from redsync._core.runner import Session
from redsync._protocols.acquire_requests import AcquireRequest
from redsync._protocols.attempts import Attempt

__all__ = ["line_up"]

_LONGEST_SLEEP = 30.0
"""Seconds after which an acquire behind the front looks by itself: an interruption may have lost its wake-up."""


def line_up(session: Session, request: AcquireRequest, attempt: Attempt, others: int) -> _Unhurried | _InCrowd | None:
    """Return the turn of an acquire that is about to begin while `others` of the same lock are under way.

    None means that it may ask at once, and that no other acquire depends on it.

    It joins a crowd only if many others are under way. It waits alone if it tries just once, if its place on the
    nodes decides the order (tickets), or if several may get the lock together (readers).
    """
    if others < FRONT or request.timeout == 0 or request.kind.mode:
        return _Unhurried(attempt) if attempt.can_pause else None
    place = attempt.place
    return _InCrowd(session, request, attempt) if place.lines_up else None


class _Unhurried:
    """The turn of an acquire that waits alone, and pauses before it asks; the methods are those of `_InCrowd`."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt

    def come(self, now: float, deadline: float) -> Steps[tuple[float, bool]]:  # noqa: ARG002
        return (yield from self._attempt.pause_first(now)), True

    def note(self, *, mute: bool) -> None:
        """Do nothing: no other acquire depends on this one."""

    def end(self) -> Steps[None]:
        yield from ()


class _InCrowd:
    """The turn of an acquire in a crowd."""

    def __init__(self, session: Session, request: AcquireRequest, attempt: Attempt) -> None:
        self._crowds: Crowds = session.crowds
        self._outage_timeout = session.timing.outage_timeout
        self._request = request
        self._attempt = attempt
        self._waiter = request.owner.wire
        # Acquires with different leases are in different crowds: one whose lease is too short for these nodes never
        # succeeds, and must not hold up others.
        self._crowd: Hashable = request.keys.lock if request.lease is None else (request.keys.lock, request.lease)

    def come(self, now: float, deadline: float) -> Steps[tuple[float, bool]]:
        """Sleep until the turn comes or the deadline; return the instant, and whether the acquire may ask."""
        crowds, crowd, waiter = self._crowds, self._crowd, self._waiter
        if crowds.enter(crowd, waiter):
            return now, True
        if self._request.outcome.record is not None:
            self._request.outcome.record.begin_waiting()
        key = _turn_key(waiter, self._request)
        # Enter again each time: an acquire of the same owner in a signal handler may have left the crowd for both.
        while not crowds.enter(crowd, waiter) and now < deadline:
            given_up_at = crowds.mute.get(crowd, now) + self._outage_timeout
            if now >= given_up_at:
                break
            until = min(deadline, now + _LONGEST_SLEEP, given_up_at)
            now = (yield from wait(Wait(until, key, unless=self._in_front))).at
        may_ask = self._in_front() or crowd in crowds.mute
        if may_ask:
            self._attempt.place.begin(now)
            self._attempt.outage_since = crowds.mute.get(crowd, math.inf)
        return now, may_ask

    def _in_front(self) -> bool:
        return self._crowds.is_in_front(self._crowd, self._waiter)

    def note(self, *, mute: bool) -> None:
        """Record a round; `mute`: it found no quorum."""
        self._crowds.note(self._crowd, self._attempt.outage_since if mute else None)

    def end(self) -> Steps[None]:
        """Make room for the next acquire."""
        follower = self._crowds.leave(self._crowd, self._waiter)
        if follower is None:
            return
        key = _turn_key(follower, self._request)
        try:
            yield from signal(key)
        except BaseException:
            # Again: the interruption may have struck before the first signal.
            yield from signal(key)
            raise


def _turn_key(waiter: bytes, request: AcquireRequest) -> bytes:
    return waiter + b" may ask for " + request.keys.lock
