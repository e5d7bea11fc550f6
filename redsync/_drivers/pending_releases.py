"""Pending releases: what a node must still get, because it was out of reach, or answered with an error.

A release or a rollback whose command did not reach a node, or was not answered, waits here until the maintenance
delivers it. (Dynamo calls this a hinted hand-off.) Delivery is safe whenever it happens: each try after a rollback
makes a claim with a new number, so a late command finds none of the later claims.

A later command about the same claim makes the earlier ones needless: a hold count is set, never subtracted from, and a
rollback leaves nothing. So of each claim only the latest command waits here, and none once the node has executed a
later one. One case is left: the node may execute the later one while the earlier one is under way again over another
connection. The worst of those are a release that only lowers a hold count, behind the next re-entry (`inspect` shows
the lower count until the next renewal), a rate limiter's permit that one node keeps for a window though it was rolled
back, and the end of a wait for a latch, behind the next wait, which then looks by itself, within 1.5 s.

A node that runs a slow script (BUSY), loads its data, or is out of memory refuses releases too. It gets them again
after a pause, which grows to half a second; a connection to it that has just been made ends the pause.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from contextlib import AbstractContextManager
from operator import attrgetter
from typing import Any, Final

from redsync._core.effects import Arg
from redsync._drivers.requests import Request

__all__ = ["PendingReleases", "is_refused"]

_SHORTEST, _LONGEST = 0.01, 0.5
"""The shortest and the longest pause in seconds between two tries while a node answers with errors."""

_MOST = 512
"""The most commands sent at once: a node that owes more replies gets no new claims."""

_STALE_LIMIT = 10_000
"""The most expired requests kept for a node that may have executed some late; the first to expire is dropped first."""

_PURGE_FROM = 256
"""The number of requests from which a purge pays off."""

_WRONG = r"\bWRONGTYPE\b|^ERR unknown command|^ERR wrong number of arguments|^UNACKNOWLEDGED "
"""Redis 6 puts the place in the script before WRONGTYPE. An UNACKNOWLEDGED command was executed."""


def is_refused(text: str) -> bool:
    """Return True if an error means that the node may execute the command later, False if the command is wrong."""
    return re.search(_WRONG, text) is None


class _OfNode:
    """The requests that one node must still get, in the order of the client's commands.

    After its `owed_until` a request is pointless, because the claim that it removes has expired. The exception is a
    node that may have executed commands late, so that their claims live from then on: one that left some unanswered, as
    a hung node does, or that refuses some, as it may have hung before. So until such a node has got all, no request
    becomes pointless.

    Each claim that lives, or lived within its lease, has one entry, which is never dropped. Of expired entries only the
    latest `_STALE_LIMIT` are kept, because a node that hangs or refuses for hours would collect any number of them. A
    claim whose entry was dropped stays on the node for one lease after it resumes.

    Attributes:
        requests: The latest one about each claim.
        late: True if the node may have executed commands late.
        under_way: The requests that it was sent last, without those that it has answered.
        at: The instant from which it gets the next ones.
        pause: The latest pause in seconds; 0.0 if it has executed what it was sent last.
    """

    def __init__(self) -> None:
        self.requests: dict[tuple[Arg, ...], Request] = {}
        self.late = False
        self.under_way: dict[Request, None] = {}
        self.at = self.pause = 0.0
        self._purge_at = _PURGE_FROM

    def add(self, request: Request, bit: int, now: float) -> None:
        """Keep a request if the node must get it; it replaces an earlier one about the same claim."""
        self.under_way.pop(request, None)
        if not request.owed(bit) or self._is_pointless(request, now):
            return
        claim = request.claim
        same = self.requests.get(claim)
        if same is None or same.number < request.number:
            self.requests[claim] = request
            if len(self.requests) >= self._purge_at:
                self._purge(now)

    def take(self, now: float) -> list[Request]:
        """Return the requests that the node gets now, and keep the others."""
        due = [request for request in self.requests.values() if not self._is_pointless(request, now)]
        due.sort(key=attrgetter("number"))
        batch, rest = due[:_MOST], due[_MOST:]
        self.requests = {request.claim: request for request in rest}
        self.late = self.late and bool(rest)
        self.under_way = dict.fromkeys(batch)
        self._purge_at = max(2 * len(rest), _PURGE_FROM)
        return batch

    def settle(self, request: Request, now: float) -> None:
        """Record that the node has executed a request, or will never execute it."""
        if request in self.under_way:
            del self.under_way[request]
            if self.at <= now:
                self.pause = 0.0
        same = self.requests.get(request.claim)
        if same is not None and same.number <= request.number:
            del self.requests[request.claim]

    def _purge(self, now: float) -> None:
        """Drop pointless requests; the next purge comes when twice as many are kept."""
        kept = [request for request in self.requests.values() if not self._is_pointless(request, now)]
        expired = sorted(
            (request.effect.owed_until for request in kept if request.effect.owed_until <= now), reverse=True
        )
        after = expired[_STALE_LIMIT] if len(expired) > _STALE_LIMIT else -math.inf
        # A new table replaces the old one in one step, so no interruption can split it.
        self.requests = {request.claim: request for request in kept if request.effect.owed_until > after}
        self._purge_at = max(2 * len(self.requests), _PURGE_FROM)

    def _is_pointless(self, request: Request, now: float) -> bool:
        return request.effect.owed_until <= now and not self.late


class PendingReleases:
    """The pending releases of one client. Any thread may call it."""

    def __init__(self, nodes: int, guard: AbstractContextManager[Any]) -> None:
        """Make it empty; `guard` is reentrant, because a finalizer may interrupt a thread that holds it."""
        self._guard: Final = guard
        self._of_node: Final = [_OfNode() for _ in range(nodes)]

    def add(self, index: int, requests: Iterable[Request], now: float, *, unanswered: bool = False) -> None:
        """Keep those requests that the node must get. `unanswered`: it may still execute what it was sent."""
        ours = self._of_node[index]
        with self._guard:
            ours.late |= unanswered
            for request in requests:
                ours.add(request, 1 << index, now)

    def refuse(self, index: int, request: Request, now: float) -> None:
        """Keep a request that the node must get, and has answered with an error."""
        ours = self._of_node[index]
        with self._guard:
            if ours.at <= now:  # else another one of the same batch was refused just now
                ours.pause = min(max(2 * ours.pause, _SHORTEST), _LONGEST)
                ours.at = now + ours.pause
            ours.late = True
            ours.add(request, 1 << index, now)

    def settle(self, index: int, request: Request, now: float) -> None:
        """Record that the node has executed a request, or will never execute it: it needs no earlier one either."""
        ours = self._of_node[index]
        if ours.requests or ours.under_way:
            with self._guard:
                ours.settle(request, now)

    def take(self, index: int, now: float) -> list[Request]:
        """Return the requests to send now, in order; `refuse`, `settle` or `add` says what became of each."""
        ours = self._of_node[index]
        with self._guard:
            return [] if not ours.requests or ours.under_way or now < ours.at else ours.take(now)

    def due_at(self, index: int) -> float:
        """Return when the node is due for the next ones, if it is connected; infinity if there are none."""
        ours = self._of_node[index]
        return ours.at if ours.requests and not ours.under_way else math.inf

    def count(self, index: int) -> int:
        """Return how many the node has yet to get, besides those in flight."""
        return len(self._of_node[index].requests)

    def clear_pause(self, index: int) -> None:
        """Begin again with a node that has just been connected."""
        ours = self._of_node[index]
        with self._guard:
            ours.at = ours.pause = 0.0
