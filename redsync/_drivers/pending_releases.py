"""Pending releases: what a node must still get, because it was out of reach, or answered with an error.

A release or a rollback whose command did not reach a node, or was not answered, waits here until the maintenance
delivers it. (Dynamo calls this a hinted hand-off.) Delivery is safe whenever it happens: each try after a rollback
makes a claim with a new number, so a late command finds none of the later claims.

A node that runs a slow script (BUSY), loads its data, or is out of memory refuses releases too. It gets a single one
first, with growing pauses, and another one each time: it may refuse a single one forever. Once one is executed, it
gets more and more of the others. So a node in trouble gets few commands, and a recovered one gets all of them soon.

A refused command must not be executed behind a later one about the same claim: a release that leaves a count of one
would undo the next re-entry. So the later one replaces it: its sender knows of every claim that the node may keep, and
releases it in turn. A renewal replaces nothing: it wakes no waiter, and a node that refuses the release may refuse it
too. Behind it the release does no harm, as both leave what the holder still has. Commands without an answer are not
replaced, as the node may still execute what precedes them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any, Final

from redsync._drivers.requests import Owed, Request

__all__ = ["PendingReleases", "is_refused"]

_SHORTEST, _LONGEST = 0.01, 0.5
"""The shortest and the longest pause in seconds between two tries while a node answers with errors."""

_FASTER, _MOST = 8, 512
"""The factor by which the number of commands grows after a success, and the most commands sent at once."""

_WRONG = r"\bWRONGTYPE\b|^ERR unknown command|^ERR wrong number of arguments|^UNACKNOWLEDGED "
"""Redis 6 puts the place in the script before WRONGTYPE. An UNACKNOWLEDGED command was executed."""


def is_refused(text: str) -> bool:
    """Return True if an error means that the node may execute the command later, False if the command is wrong."""
    return re.search(_WRONG, text) is None


class _OfNode:
    """The commands that one node must still get."""

    def __init__(self) -> None:
        self.owed: Final = Owed()
        self.under_way: dict[Request, None] = {}
        self.at = 0.0
        self.pause = 0.0
        self.size = _MOST
        self.refused = 0  # the number of the latest that was refused


class PendingReleases:
    """The pending releases of one client. Any thread may call it.

    Attributes:
        some: True if there may be any; saves the maintenance a look.
    """

    def __init__(self, nodes: int, guard: AbstractContextManager[Any]) -> None:
        """Make it empty; `guard` is reentrant, because a finalizer may interrupt a thread that holds it."""
        self._guard: Final = guard
        self._of_node: Final = [_OfNode() for _ in range(nodes)]
        self.some = False

    def add(self, index: int, requests: Iterable[Request], now: float, *, unanswered: bool = False) -> None:
        """Keep those requests that the node must get. `unanswered`: it may still execute what it was sent."""
        ours = self._of_node[index]
        with self._guard:
            ours.owed.unanswered |= unanswered
            for request in requests:
                request.refused &= ~(1 << index)
                self._keep(ours, 1 << index, request, now)

    def _keep(self, ours: _OfNode, bit: int, request: Request, now: float) -> None:
        ours.under_way.pop(request, None)
        ours.owed.add(request, bit, now)
        self.some = self.some or len(ours.owed) > 0

    def refuse(self, index: int, request: Request, now: float, *, superseded: bool = False) -> None:
        """Keep a request that the node must get, and has answered with an error.

        Not if it is `superseded`: a later one that replaces it is under way over its link.
        """
        ours = self._of_node[index]
        with self._guard:
            if not ours.under_way.keys() - {request}:
                ours.pause = min(max(2 * ours.pause, _SHORTEST), _LONGEST)
                ours.at, ours.size, ours.refused = now + ours.pause, 1, request.number
            if superseded:
                ours.under_way.pop(request, None)
            else:
                request.refused |= 1 << index
                self._keep(ours, 1 << index, request, now)

    def supersede(self, index: int, requests: Iterable[Request]) -> None:
        """Forget refused requests that these later ones replace, which the node gets now."""
        with self._guard:
            for request in requests:
                self._of_node[index].owed.supersede(request)

    def settle(self, index: int, request: Request, now: float) -> None:
        """Record that the node has executed a request that was delivered from here."""
        ours = self._of_node[index]
        if request not in ours.under_way:
            return
        with self._guard:
            ours.under_way.pop(request, None)
            if not ours.under_way:
                ours.at, ours.pause, ours.size = now, 0.0, min(_FASTER * ours.size, _MOST)

    def take(self, index: int, now: float) -> list[Request]:
        """Return the requests to send now, in order; `refuse`, `settle` or `add` says what became of each."""
        ours = self._of_node[index]
        with self._guard:
            if not len(ours.owed) or ours.under_way or now < ours.at:
                return []
            unanswered = ours.owed.unanswered
            batch = ours.owed.take(now)
            if ours.size == 1:
                # Those about one claim keep their order.
                first: dict[object, Request] = {}
                for request in batch:
                    first.setdefault(request.claim, request)
                batch.sort(key=lambda each: (first[each.claim] is not each, each.number <= ours.refused))
            batch, rest = batch[: ours.size], batch[ours.size :]
            ours.owed.unanswered = unanswered and bool(rest)
            for request in rest:
                ours.owed.add(request, 1 << index, now)
            ours.under_way = dict.fromkeys(batch)
            self.some = any(len(each.owed) for each in self._of_node)
            return batch

    def due_at(self, index: int) -> float:
        """Return when the node is due for the next ones, if it is connected; infinity if there are none."""
        ours = self._of_node[index]
        return ours.at if len(ours.owed) and not ours.under_way else math.inf

    def count(self, index: int) -> int:
        """Return how many the node has yet to get, besides those in flight."""
        return len(self._of_node[index].owed)

    def clear_pause(self, index: int) -> None:
        """Begin again with a node that has just been connected."""
        ours = self._of_node[index]
        with self._guard:
            ours.at, ours.pause, ours.size = 0.0, 0.0, _MOST
