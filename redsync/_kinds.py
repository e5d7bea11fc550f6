"""The kinds of synchronizers, as a table for the simulator, the benchmark and the tests.

A row of `redsync._KINDS` registers a kind. Code that loops over kinds, or makes one by its name, uses this table. So a
new kind that is used like an older one needs no other entry. A kind's facade and protocol define its behaviour.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple

import redsync

__all__ = ["KINDS", "LOCKS", "Kind"]


class Kind(NamedTuple):
    """One kind of synchronizer.

    Attributes:
        noun: Its full name: `get_fair_lock` makes a `fair_lock`; its classes are `FairLock` and `AsyncFairLock`.
        word: Its short name, also on the command lines of the simulator and the benchmark.
        like: The word of the kind with the same use and promises. It selects the simulator's workers and checkers, and
            the tests.
        waits: How waiters are served: in `order` of arrival, from a `queue` that others may overtake, after `pauses`
            without a place on the nodes, or all `together`.
        shown: Its name in `redsync ls` and `redsync show`; empty if nodes keep nothing for it.
    """

    noun: str
    word: str
    like: str
    waits: Literal["order", "queue", "pauses", "together"]
    shown: str

    @property
    def facade(self) -> str:
        """The name of its class for threads; the one for asyncio has `Async` in front."""
        return "".join(part.capitalize() for part in self.noun.split("_"))

    def maker(self, client: Any) -> Callable[..., Any]:
        """Return the client's method that makes it."""
        maker: Callable[..., Any] = getattr(client, f"get_{self.noun}")
        return maker


KINDS: Final[dict[str, Kind]] = {row[1]: Kind._make(row) for row in redsync._KINDS}
"""Every kind, by its word."""

LOCKS: Final = tuple(kind for kind in KINDS.values() if kind.like in ("lock", "mutex"))
"""The kinds that have a lock's methods and are made from a name alone."""
