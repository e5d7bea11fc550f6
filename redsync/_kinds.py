"""The kinds of synchronizers: what the simulator, the benchmark and the tests need to know to treat them all.

A row of `redsync._KINDS` registers a kind. Code that loops over kinds, or makes one by its name, takes it from here. So
a new kind that is used like an older one needs no other entry. What a kind *does* is in its facade and its protocol.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple

import redsync

__all__ = ["KINDS", "LOCKS", "Kind"]


class Kind(NamedTuple):
    """One kind of synchronizer.

    Attributes:
        noun: Its full name: a `fair_lock` is made by `get_fair_lock`; its classes are `FairLock` and `AsyncFairLock`.
        word: Its short name, also on the command lines of the simulator and the benchmark.
        like: The word of the kind that it is used like, with all its promises. This chooses the simulator's workers and
            checkers, and the tests.
        waits: How waiters are served: in `order` of arrival, from a `queue` that others may overtake, after `pauses`
            without a place on the nodes, or all `together`.
        shown: What `redsync ls` and `redsync show` call it; empty if nodes keep nothing of its own.
    """

    noun: str
    word: str
    like: str
    waits: Literal["order", "queue", "pauses", "together"]
    shown: str

    @property
    def facade(self) -> str:
        """The name of its class for threads; for asyncio with `Async` before it."""
        return "".join(part.capitalize() for part in self.noun.split("_"))

    def maker(self, client: Any) -> Callable[..., Any]:
        """Return the client's method that makes it."""
        maker: Callable[..., Any] = getattr(client, f"get_{self.noun}")
        return maker


KINDS: Final[dict[str, Kind]] = {row[1]: Kind._make(row) for row in redsync._KINDS}
"""Every kind, by its word."""

LOCKS: Final = tuple(kind for kind in KINDS.values() if kind.like in ("lock", "mutex"))
"""Those that have the methods of a lock and are made by a name alone."""
