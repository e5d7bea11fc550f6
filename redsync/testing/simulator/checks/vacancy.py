"""Vacancy: tells the liveness checker whether a lock or permit is free for its waiters.

* A lock is free while no owner believes that it holds it.
* A semaphore is free while it has enough unheld permits for its greediest waiter. With fewer, no waiter has to be
  served, because the first one may be the one that wants the most. A rate limiter is always free, because successes
  expire.
* A read-write lock is free for a reader while no owner writes or waits to write. It is free for a writer while no owner
  writes, and all readers *overtook* it: they asked when the writer had a place on a quorum of nodes, it has had one
  ever since, and they did not write themselves. So a stream of readers does not keep the lock from being free.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final, TypeAlias

from redsync._core.quorum import quorum_of
from redsync.testing.simulator.checks.checker import Checker, Simulation
from redsync.testing.simulator.checks.kept import kept_at, kept_places
from redsync.testing.simulator.checks.rounds import MODES, PERMIT, Claim, parse

if TYPE_CHECKING:
    from redsync._core.holds import HoldState
    from redsync.testing.simulator.happenings import Executed, Sent

__all__ = ["Vacancy", "Whose"]

Whose: TypeAlias = tuple[bytes, bytes, bytes]
"""Key, owner, mode."""

_READ, _WRITE = MODES["read_lock"], MODES["write_lock"]

_KEYS = 6
"""The number of keys of each semaphore in a command; the last one has the limit."""


class Vacancy:
    """Tells what is free for its waiters. It gets requests, releases and scripts; call `look` now and then."""

    def __init__(self, sim: Simulation) -> None:
        self._sim: Final = sim
        self._quorum: Final = quorum_of(len(sim.nodes))
        self._limits: Final[dict[bytes, bytes]] = {}
        self._wants: Final[dict[bytes, int]] = {}
        self._queues: Final[dict[bytes, tuple[bytes, bytes]]] = {}
        self._asked_at: Final[dict[Whose, float]] = {}
        self._queued_at: Final[dict[Whose, float]] = {}

    def note_asked(self, claim: Claim, sent: Sent, checker: Checker) -> None:
        """Record a request."""
        self._wants[claim.owner] = claim.holds
        if claim.mode and len(sent.keys) > 1:
            self._queues[claim.key] = sent.keys[1], sent.keys[2]
            holds = checker.runner(sent.client).session.holds
            writes = any(_whose(state) == (claim.key, claim.owner, _WRITE) for state in holds)
            # A writer does not queue to read.
            self._asked_at.setdefault((claim.key, claim.owner, claim.mode), -math.inf if writes else sent.at)

    def note_left(self, claim: Claim) -> None:
        """Record an owner that gives up, or releases."""
        self._asked_at.pop((claim.key, claim.owner, claim.mode), None)

    def note_executed(self, executed: Executed) -> None:
        """Record where nodes keep the limits of semaphores."""
        # A renewal has the keys of several semaphores.
        for i in range(0, len(executed.keys) if parse(executed.script)[0] == PERMIT else 0, _KEYS):
            self._limits[executed.keys[i]] = executed.keys[i + _KEYS - 1]

    def look(self, awaited: Iterable[Whose]) -> None:
        """Look at all nodes, while owners wait for these claims."""
        queued = [whose for whose in awaited if whose[2] == _WRITE and self._has_places(whose)]
        before = dict(self._queued_at)
        self._queued_at.clear()
        self._queued_at.update((whose, before.get(whose, self._sim.now)) for whose in queued)

    def _has_places(self, whose: Whose) -> bool:
        key, owner, _ = whose
        return key in self._queues and self._quorum <= sum(
            owner in kept_places(node, *self._queues[key]) for node in self._sim.nodes
        )

    def is_taken(self, key: bytes, mode: bytes, awaited: Iterable[Whose]) -> bool:
        """Return whether the key is not free for those that wait for it in that mode."""
        waiters = [(owner, mode) for awaited_key, owner, mode in awaited if awaited_key == key]
        if mode == _READ:
            writers = any(mode == _WRITE for _, mode in waiters)
            return writers or any(state.kind.mode == _WRITE for state in self._believed(key))
        if mode == _WRITE:
            since = min((at for whose, at in self._queued_at.items() if whose[0] == key), default=math.inf)
            return any(not self._overtook(state, since) for state in self._believed(key))
        believed, limit = sum(state.count for state in self._believed(key)), self._limit(key)
        if limit is None:
            return believed > 0
        return believed + max(self._wants[owner] for owner, _ in waiters) > limit

    def _limit(self, key: bytes) -> int | None:
        """Return the smallest limit that any node knows; None if the key is not a semaphore's, or no node knows one."""
        kept = [kept_at(node, self._limits[key], bytes).split() for node in self._sim.nodes if key in self._limits]
        # That of a rate limiter has a third word: its window.
        return min((int(words[1]) for words in kept if len(words) == 2), default=None)

    def _overtook(self, state: HoldState, since: float) -> bool:
        return state.kind.mode == _READ and self._asked_at.get(_whose(state), -math.inf) > since

    def _believed(self, key: bytes) -> Iterator[HoldState]:
        """Return the believed holds of that key."""
        for machine in self._sim.machines:
            for state in machine.holds() if not machine.crashed else ():
                if state.keys.lock == key and state.valid(machine.clock.now()):
                    yield state


def _whose(state: HoldState) -> Whose:
    return state.keys.lock, state.owner.wire, state.kind.mode
