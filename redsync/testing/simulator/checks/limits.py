"""The possible limits of a semaphore, derived from the nodes' records. For several checkers.

A limit is *possible* at an instant if a quorum of nodes knows no newer one. Only then can a permit be granted under it,
because each vote of a grant means that its node knew no newer one when it voted. So after a resize that reached only a
minority, both limits are possible. The limit that programs pass is possible until a quorum has another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from redsync._core.quorum import quorum_of
from redsync.testing.simulator.checks.rounds import PERMIT, parse

if TYPE_CHECKING:
    from redsync.testing.simulator.happenings import Executed
    from redsync.testing.simulator.simulation import Simulation

__all__ = ["Limits"]

_KEYS = 6


class _Limit(NamedTuple):
    """A node's record: a semaphore's limit, or a rate limiter's with its window."""

    version: int
    permits: int
    per_us: int = 0


class Limits:
    """The limits of all semaphores. Call `note` for every `Executed`, `look` when nodes may have lost their memory."""

    def __init__(self, sim: Simulation) -> None:
        self._sim: Final = sim
        self._quorum: Final = quorum_of(len(sim.nodes))
        self._keys: Final[dict[bytes, bytes]] = {}
        self._permits: Final[dict[bytes, dict[int, int]]] = {}
        self._known: Final[dict[bytes, list[_Limit | None]]] = {}
        self._largest: Final[dict[bytes, list[tuple[float, int]]]] = {}

    def note(self, executed: Executed) -> None:
        """Record what a node has executed, if it concerns limits."""
        # A renewal has the keys of several semaphores.
        for i in range(0, len(executed.keys) if parse(executed.script)[0] == PERMIT else 0, _KEYS):
            key = executed.keys[i]
            if key not in self._keys:
                self._keys[key] = executed.keys[i + _KEYS - 1]
                self._known[key] = [None] * len(self._sim.nodes)
            before, now = self._known[key][executed.node], self._read(key, executed.node)
            if before != now:
                self._known[key][executed.node] = now
                self._judge(key)

    def look(self) -> None:
        """Read the limits on all nodes."""
        for key, known in self._known.items():
            known[:] = [self._read(key, node) for node in range(len(known))]
            self._judge(key)

    def largest(self, key: bytes, since: float) -> int:
        """Return the largest limit that was possible at any instant since `since`."""
        history = self._largest.get(key, [(0.0, 0)])
        latest = next((i for i in range(len(history) - 1, -1, -1) if history[i][0] <= since), 0)
        return max(permits for _, permits in history[latest:])

    def smallest(self, key: bytes) -> int | None:
        """Return the smallest limit that any node knows; None if the key is not a semaphore's, or no node knows one."""
        known = [limit.permits for limit in self._known.get(key, ()) if limit is not None and not limit.per_us]
        return min(known, default=None)

    def _read(self, key: bytes, node: int) -> _Limit | None:
        found = self._sim.nodes[node].store.peek(self._keys[key])
        return _Limit(*map(int, found[0].split())) if found is not None and isinstance(found[0], bytes) else None

    def _judge(self, key: bytes) -> None:
        known = [-1 if limit is None else limit.version for limit in self._known[key]]
        told = self._permits.setdefault(key, {})
        told |= {limit.version: limit.permits for limit in self._known[key] if limit is not None}
        possible = [
            permits for version, permits in told.items() if sum(version >= newest for newest in known) >= self._quorum
        ]
        if possible:
            self._largest.setdefault(key, []).append((self._sim.now, max(possible)))
