"""What a node takes for each kind's scripts, by its own account, beside the smallest scripts that lock at all."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

import redis

from bench.floor import BareLock
from bench.measure import Figure, compare, interleave
from redsync import Client, Semaphore
from redsync.testing import LocalNodes

_PAIRS = 300


def run(*, quick: bool) -> list[Figure]:
    """Measure acquire and release of each kind on one node: microseconds per script."""
    with (
        LocalNodes(1) as nodes,
        nodes.client() as client,
        BareLock(nodes.ports, "floor") as floor,
        redis.Redis.from_url(nodes.urls[0]) as node,
    ):
        sides = [partial(_script, node, pair) for pair in (partial(_pair, floor), *_pairs_of(client).values())]
        for side in sides:
            side()
        bare, *ours = interleave(sides, 8 if quick else 30)
    return [
        compare("scripts", f"{kind}: acquire and release, each", "us", times, bare)
        for kind, times in zip(_pairs_of(client), ours, strict=True)
    ]


def _pairs_of(client: Client) -> dict[str, Callable[[], None]]:
    shared = client.get_read_write_lock("read_write")
    things: dict[str, _Lock] = {
        "lock": client.get_lock("lock"),
        "fair lock": client.get_fair_lock("fair"),
        "fenced lock": client.get_fenced_lock("fenced"),
        "mutex": client.get_mutex("mutex"),
        "read lock": shared.read_lock,
        "write lock": shared.write_lock,
    }
    semaphore = client.get_semaphore("semaphore", 100)
    return {**{kind: partial(_pair, lock) for kind, lock in things.items()}, "semaphore": partial(_permit, semaphore)}


def _script(node: redis.Redis, pair: Callable[[], None]) -> float:
    """Return how many microseconds the node took for a script, over many pairs."""
    node.config_resetstat()
    for _ in range(_PAIRS):
        pair()
    microseconds: float = node.info("commandstats")["cmdstat_evalsha"]["usec_per_call"]
    return microseconds


class _Lock(Protocol):
    def acquire(self) -> bool: ...

    def release(self) -> None: ...


def _pair(lock: _Lock | BareLock) -> None:
    if not lock.acquire():
        raise RuntimeError("a lock that nobody else wants was refused")
    lock.release()


def _permit(semaphore: Semaphore) -> None:
    if semaphore.acquire() is None:
        raise RuntimeError("a permit that nobody else wants was refused")
    semaphore.release()
