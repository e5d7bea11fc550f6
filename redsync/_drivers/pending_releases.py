"""Pending releases: what a node must still get, because it was out of reach, or answered with an error.

A release or a rollback whose command did not reach a node, or was not answered, waits here until the maintenance
delivers it. (Dynamo calls this a hinted hand-off.) Delivery is safe whenever it happens: each try after a rollback
makes a claim with a new number, so a late command finds none of the later claims. The worst are a release that only
lowers a hold count, executed behind the next re-entry (`inspect` shows the lower count until the next renewal), and the
end of a wait for a latch, executed behind the next wait, which then looks by itself, within 1.5 s.

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

from redsync._core.effects import Command
from redsync._drivers.requests import Request

__all__ = ["PendingReleases", "is_refused"]

_SHORTEST, _LONGEST = 0.01, 0.5
"""The shortest and the longest pause in seconds between two tries while a node answers with errors."""

_MOST = 512
"""The most commands sent at once: a node that owes more replies gets no new claims."""

_STALE_LIMIT = 10_000
"""The most expired requests kept for a node that left commands unanswered; the first to expire is dropped first."""

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
    node that left commands unanswered: a hung node executes them when it resumes, however late, and their claims live
    from then on. So until such a node is back, no request becomes pointless.

    The same command is kept once, at its latest position: a waiter that rolls back each of its tries while the node is
    away owes it one rollback. So each claim that lives, or lived within its lease, has an entry or two, and these are
    never dropped. Of expired entries only the latest `_STALE_LIMIT` are kept, because a node that hangs for hours would
    collect any number of them. A claim whose entry was dropped stays on the node for one lease after it resumes.

    Attributes:
        requests: By command.
        unanswered: True if the node left commands unanswered since it was last connected.
        under_way: The requests that it was sent last, without those that it has answered.
        at: The instant from which it gets the next ones.
        pause: The latest pause in seconds; 0.0 if it has executed what it was sent last.
    """

    def __init__(self) -> None:
        self.requests: dict[Command, Request] = {}
        self.unanswered = False
        self.under_way: dict[Request, None] = {}
        self.at = self.pause = 0.0
        self._purge_at = _PURGE_FROM

    def add(self, request: Request, bit: int, now: float) -> None:
        """Keep a request if the node must get it; it replaces an earlier one with the same command."""
        self.under_way.pop(request, None)
        if not request.owed(bit) or self._is_pointless(request, now):
            return
        assert request.command is not None, "what is owed was made"
        same = self.requests.get(request.command)
        if same is None or same.number < request.number:
            self.requests[request.command] = request
            if len(self.requests) >= self._purge_at:
                self._purge(now)

    def take(self, now: float) -> list[Request]:
        """Return the requests that the node gets now, and keep the others."""
        due = [request for request in self.requests.values() if not self._is_pointless(request, now)]
        due.sort(key=attrgetter("number"))
        batch, rest = due[:_MOST], due[_MOST:]
        self.requests = {request.command: request for request in rest if request.command is not None}
        self.unanswered = self.unanswered and bool(rest)
        self.under_way = dict.fromkeys(batch)
        self._purge_at = max(2 * len(rest), _PURGE_FROM)
        return batch

    def _purge(self, now: float) -> None:
        """Drop pointless requests; the next purge comes when twice as many are kept."""
        kept = [request for request in self.requests.values() if not self._is_pointless(request, now)]
        expired = sorted(
            (request.effect.owed_until for request in kept if request.effect.owed_until <= now), reverse=True
        )
        after = expired[_STALE_LIMIT] if len(expired) > _STALE_LIMIT else -math.inf
        # A new table replaces the old one in one step, so no interruption can split it.
        self.requests = {
            request.command: request for request in kept if request.command and request.effect.owed_until > after
        }
        self._purge_at = max(2 * len(self.requests), _PURGE_FROM)

    def _is_pointless(self, request: Request, now: float) -> bool:
        return request.effect.owed_until <= now and not self.unanswered


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
            ours.unanswered |= unanswered
            for request in requests:
                ours.add(request, 1 << index, now)

    def refuse(self, index: int, request: Request, now: float) -> None:
        """Keep a request that the node must get, and has answered with an error."""
        ours = self._of_node[index]
        with self._guard:
            if ours.at <= now:  # else another one of the same batch was refused just now
                ours.pause = min(max(2 * ours.pause, _SHORTEST), _LONGEST)
                ours.at = now + ours.pause
            ours.add(request, 1 << index, now)

    def settle(self, index: int, request: Request, now: float) -> None:
        """Record that the node has executed a request that was delivered from here."""
        ours = self._of_node[index]
        if request not in ours.under_way:
            return
        with self._guard:
            ours.under_way.pop(request, None)
            if ours.at <= now:
                ours.pause = 0.0

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
