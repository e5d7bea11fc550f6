"""Latch opens: once a latch is counted down to zero and faults are over, all its waiters learn of it.

Programs report what they do, see `latch_early`. When as many count-downs have succeeded as the latch was set to, each
waiter on a running machine learns of it within `bound` of the latest of three instants: that one, the beginning of its
own call, and the end of the last fault (see `calm`). The bound is the 1.5 s after which a waiter looks again, by a slow
clock, and a few rounds; after faults also the time to connect, and to abandon a silent connection.

In a run without any fault nodes wake the waiters, so the bound is `_WOKEN` seconds.

Not seen: latches whose count-downs a majority of nodes has forgotten; they may open late.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from redsync.testing.simulator.checks.checker import Checker, Simulation
from redsync.testing.simulator.checks.latches import Latches
from redsync.testing.simulator.happenings import Decided, Did, Executed, Faulted, Sent

__all__ = ["LatchOpens"]

_WOKEN = 0.3
"""Seconds within which a waiter learns of it without faults: less than a waiter sleeps that is not woken."""

_CONNECTED = 5.0
"""Seconds to connect and to look again."""


class LatchOpens(Checker):
    """Waiters learn that a latch is open."""

    name = "latch opens"
    watches = (Did, Sent, Executed, Decided, Faulted)
    every = 0.1

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim)
        self._latches: Final = Latches(sim)
        self._faulted = False

    @property
    def bound(self) -> float:
        """Seconds for which a waiter may wait for an open latch."""
        return _CONNECTED + self.silence if self._faulted else _WOKEN

    def see(self, happening: Did | Sent | Executed | Decided | Faulted) -> None:
        """Record what happens."""
        self._faulted = self._faulted or isinstance(happening, Faulted)
        if isinstance(happening, Did):
            self._latches.note_did(happening)
        else:
            self._latches.note(happening)

    def look(self) -> Iterable[str]:
        """Look for waiters that have not learned of it."""
        since = self.sim.now - self.bound
        if self.sim.calm.lasted() <= self.bound:
            return
        for name, past in self._latches.pasts.items():
            generation = past.latest
            if generation is None or generation.established > since or past.least(generation, since) < generation.size:
                continue
            for call in past.calls.values():
                if call.how == "wait" and call.began < since and not call.did.machine.crashed:
                    yield (
                        f"{call.did.who} on {call.did.machine.name} has waited for {name!r} since {call.began:.6f}, "
                        f"and it has been open for more than {self.bound:.3f} s"
                    )
