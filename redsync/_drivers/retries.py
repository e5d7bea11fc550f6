"""Retries: what a connected node must get, but has answered by an error instead of executing it.

A node that runs a slow script (BUSY), loads its data, can't save it, or is out of memory refuses releases too. They are
sent again until they are executed, or pointless: one at first, with growing pauses; when it is executed, more and more
of the others follow. So a node in trouble is asked little, and one that is well again gets all of it soon.

**Order.** Sent again behind a later command about the same claim, a rollback would end what that command has made. So
what was answered by an error waits while such a command is under way, and is dropped once one was executed: whoever
sent that knows of everything that the node may keep, and gives it back in turn.

A connection that ends leaves all of this to the next one, like what was never answered.
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
"""Seconds between two tries while a node answers by errors."""

_FASTER, _MOST = 8, 512
"""How many times as many follow a success, and how many at most."""

_number = attrgetter("number")

_WRONG = re.compile(r"\bWRONGTYPE\b|^ERR unknown command|^ERR wrong number of arguments")
"""Redis 6 says the first behind where in which script it happened."""


def is_refused(text: str) -> bool:
    """Whether an error says that a command was not executed but may be later, rather than that it is wrong."""
    return _WRONG.search(text) is None


class Retries:
    """What is to be sent again over one connection; guarded by the transport's mutex.

    Attributes:
        at: When the next ones are to be sent; infinity if there are none, or the last try is not answered yet.
    """

    def __init__(self) -> None:
        self.at = math.inf
        self._requests: dict[tuple[Any, ...], Request] = {}
        self._last: Request | None = None
        self._size = 1
        self._pause = 0.0

    def __bool__(self) -> bool:
        return bool(self._requests) or self._last is not None

    def __iter__(self) -> Iterator[Request]:
        return iter(tuple(self._requests.values()))

    def add(self, request: Request, now: float) -> None:
        """Keep a request that was answered by an error, instead of an earlier one about the same claim."""
        kept = self._requests.pop(request.claim, request)  # The last one to fail is the last one to be tried again.
        self._requests[request.claim] = max(kept, request, key=_number)
        if request is self._last:
            self._last = None
            self._size = 1
        if self._last is None and self.at == math.inf:
            self._pause = min(max(2 * self._pause, _SHORTEST), _LONGEST)
            self.at = now + self._pause

    def settle(self, request: Request, now: float) -> None:
        """Take note that a command was executed, or is wrong: what came before it about the same claim is settled."""
        claim, last = request.claim, self._last
        # An earlier one may be executed after it: what was sent again as the node had forgotten its script.
        if _number(self._requests.get(claim, request)) <= request.number:
            self._requests.pop(claim, None)
        if last is not None and last.claim == claim and last.number <= request.number:
            self._last = None
            self._size = min(_FASTER * self._size, _MOST)
            self.at = now
        if not self:
            self.clear()

    def due(self, now: float, pending: Iterable[Request]) -> list[Request]:
        """Return what is to be sent again now, in order, given what was sent and is not answered yet."""
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
        """Forget requests that have been noted as sent."""
        for request in batch:
            self._requests.pop(request.claim, None)

    def clear(self) -> None:
        """Forget everything."""
        self._requests.clear()
        self.at, self._last, self._size, self._pause = math.inf, None, 1, 0.0
