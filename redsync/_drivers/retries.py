"""Retries: commands that a connected node must get, but answered with an error instead of executing them.

A node that runs a slow script (BUSY), loads its data, can't save it, or is out of memory refuses releases too. The
client sends them again until they are executed or pointless: first a single one, with growing pauses; once that is
executed, more and more of the others. So a node in trouble gets few commands, and a recovered one gets all of them
soon.

**Order.** If a rollback were sent again after a later command for the same claim, it would end that command's claim. So
a refused command waits while such a command is in flight, and is dropped once one was executed: the sender of that
command knows of every claim that the node may keep, and releases it in turn.

A connection that ends leaves all of these to the next one, like unanswered commands.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Any

from redsync._drivers.requests import Request

__all__ = ["Retries", "is_refused"]

_SHORTEST, _LONGEST = 0.01, 0.5
"""The shortest and the longest pause in seconds between two tries while a node answers with errors."""

_FASTER, _MOST = 8, 512
"""The factor by which the number of commands grows after a success, and the most commands sent at once."""

_number = attrgetter("number")

_WRONG = r"\bWRONGTYPE\b|^ERR unknown command|^ERR wrong number of arguments|^UNACKNOWLEDGED "
"""Redis 6 puts the place in the script before WRONGTYPE. An UNACKNOWLEDGED command was executed."""


def is_refused(text: str) -> bool:
    """Return True if an error means that the node may execute the command later, False if the command is wrong."""
    return re.search(_WRONG, text) is None


class Retries:
    """The requests to be sent again over one connection; guarded by the transport's mutex.

    Attributes:
        at: The instant at which the next requests are due; infinity if there are none, or the last try is unanswered.
        under_way: True if there are any, or the last try is unanswered.
    """

    def __init__(self) -> None:
        self.at = math.inf
        self.under_way = False
        self._requests: dict[tuple[Any, ...], Request] = {}
        self._last: Request | None = None
        self._size = 1
        self._pause = 0.0

    def __iter__(self) -> Iterator[Request]:
        return iter(tuple(self._requests.values()))

    def add(self, request: Request, now: float) -> None:
        """Keep a request that was answered with an error; it replaces an earlier one for the same claim."""
        self.under_way = True
        kept = self._requests.pop(request.claim, request)  # The last to fail is the last to try again.
        self._requests[request.claim] = max(kept, request, key=_number)
        if request is self._last:
            self._last = None
            self._size = 1
        if self._last is None and self.at == math.inf:
            self._pause = min(max(2 * self._pause, _SHORTEST), _LONGEST)
            self.at = now + self._pause

    def settle(self, request: Request, now: float) -> None:
        """Record that a command was executed or is wrong, which settles earlier ones for the same claim."""
        claim, last = request.claim, self._last
        # A node may execute an earlier command after a later one: one sent again because the script was missing.
        if _number(self._requests.get(claim, request)) <= request.number:
            self._requests.pop(claim, None)
        if last is not None and last.claim == claim and last.number <= request.number:
            self._last = None
            self._size = min(_FASTER * self._size, _MOST)
            self.at = now
        if not self._requests and self._last is None:
            self.clear()

    def due(self, now: float, pending: Iterable[Request]) -> list[Request]:
        """Return the requests to send again now, in order; `pending` are those sent and not answered yet."""
        later = {request.claim for request in pending}
        for request in self:
            if request.effect.owed_until <= now:
                del self._requests[request.claim]
        free = [request for claim, request in self._requests.items() if claim not in later]
        batch = sorted(free[: self._size], key=_number)
        if batch:
            self._last, self.at = batch[-1], math.inf
        elif self._requests:
            self.at = now + _SHORTEST
        else:
            self.clear()
        return batch

    def remove(self, batch: Iterable[Request]) -> None:
        """Forget requests that were recorded as sent."""
        for request in batch:
            self._requests.pop(request.claim, None)

    def clear(self) -> None:
        """Forget everything."""
        self._requests.clear()
        self.under_way = False
        self.at, self._last, self._size, self._pause = math.inf, None, 1, 0.0
