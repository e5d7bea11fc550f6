"""Lining up: an acquire waits inside the process while the front of its crowd waits in the nodes' queues; see `crowds`.

An acquire that is behind has asked no node. If its time is up then, that counts as an answer: nodes have told the front
that others hold the lock. Unless the front found no quorum; then it asks once itself.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Protocol

from redsync._core.crowds import FRONT, Crowds
from redsync._core.effects import Steps, Wait, signal, wait
from redsync._core.runner import Session
from redsync._protocols.acquire_requests import AcquireRequest
from redsync._protocols.places import Place

__all__ = ["Turn", "line_up"]

_LONGEST_SLEEP = 30.0
"""Seconds after which one that is behind looks by itself: an interruption of another may have cost its wake-up."""


class Turn(Protocol):
    """One acquire's turn to ask, among those of its client that wait for the same."""

    def come(self, now: float, deadline: float) -> Steps[tuple[float, bool]]:
        """Sleep until it has come, or the time is up; return the instant, and whether it may ask."""
        ...

    def note(self, *, mute: bool) -> None:
        """Record a round, and whether it found no quorum."""
        ...

    def end(self) -> Steps[None]:
        """Make room for another one."""
        ...


def line_up(session: Session, request: AcquireRequest, place: Place) -> Turn:
    """Return the turn of an acquire that begins, and is not counted yet.

    It joins a crowd only where many wait. It stays alone if it tries just once, if its place on the nodes decides the
    order (tickets), or if several may come in together (readers).
    """
    if session.crowds.under_way < FRONT or request.timeout == 0 or request.kind.mode or not place.lines_up:
        return _ALONE
    return _InCrowd(session.crowds, request, place)


class _Alone:
    """The turn of one that waits by itself; see `Turn`."""

    def come(self, now: float, deadline: float) -> Steps[tuple[float, bool]]:  # noqa: ARG002
        yield from ()
        return now, True

    def note(self, *, mute: bool) -> None:
        """Nobody is told."""

    def end(self) -> Steps[None]:
        yield from ()


_ALONE = _Alone()


class _InCrowd:
    """The turn of one among many; see `Turn`."""

    def __init__(self, crowds: Crowds, request: AcquireRequest, place: Place) -> None:
        self._crowds = crowds
        self._request = request
        self._place = place
        self._waiter = request.owner.wire
        # Some may wait in vain where others need not: for a lease that is too short for these nodes, say.
        self._crowd: Hashable = request.keys.lock if request.lease is None else (request.keys.lock, request.lease)

    def come(self, now: float, deadline: float) -> Steps[tuple[float, bool]]:
        crowds, crowd, waiter = self._crowds, self._crowd, self._waiter
        if crowds.enter(crowd, waiter):
            return now, True
        key = _turn_key(waiter, self._request)
        # Entered again each time: the owner's own acquire in a signal's handler has left the crowd for both.
        while not crowds.enter(crowd, waiter) and now < deadline:
            now = (yield from wait(Wait(min(deadline, now + _LONGEST_SLEEP), key, unless=self._in_front))).at
        may_ask = self._in_front() or crowd in crowds.mute
        if may_ask:
            self._place.begin(now)
        return now, may_ask

    def _in_front(self) -> bool:
        return self._crowds.is_in_front(self._crowd, self._waiter)

    def note(self, *, mute: bool) -> None:
        self._crowds.note(self._crowd, mute=mute)

    def end(self) -> Steps[None]:
        follower = self._crowds.leave(self._crowd, self._waiter)
        if follower is None:
            return
        key = _turn_key(follower, self._request)
        try:
            yield from signal(key)
        except BaseException:
            # The interruption may have come first.
            yield from signal(key)
            raise


def _turn_key(waiter: bytes, request: AcquireRequest) -> bytes:
    return waiter + b" may ask for " + request.keys.lock
