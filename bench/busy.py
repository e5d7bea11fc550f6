"""A process whose threads compute: each call that gives up the GIL may cost a switch interval for each of them.

The floor is redis-py's `Lock` on one server, in the same process and under the same load. Ours has five nodes.
"""

from __future__ import annotations

import asyncio
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import redis

from bench.measure import Figure, say
from redsync import AsyncClient, Client, HoldLost
from redsync.testing import LocalNodes

_LEASES = ((4, 3.0), (8, 30.0))
"""For watchdog holds: how many threads compute, and the lease in seconds."""


def run(*, quick: bool) -> list[Figure]:
    """Measure pairs beside computing threads, and count watchdog holds that are lost."""
    seconds = 4.0 if quick else 12.0
    figures = []
    with LocalNodes(5) as nodes, nodes.client() as client, redis.Redis(port=nodes.ports[0]) as one:
        with _computing(1):
            say("    ... 1 computing thread")
            ours = _pairs([_pair(client.get_lock("busy"))], seconds)
            theirs = _pairs([_pair(one.lock("theirs", timeout=30))], seconds)
            tasks = asyncio.run(_one_task(nodes, seconds))
        figures += [
            _figure("1 computing, 1 thread: pair p50", ours, theirs, statistics.median, at_most=1.2),
            _figure("1 computing, 1 task: pair p50", tasks, theirs, statistics.median, at_most=1.2),
        ]
        with _computing(8):
            say("    ... 8 computing threads, 10 that lock")
            ours = _pairs([_pair(client.get_lock(f"busy:{i}")) for i in range(10)], seconds)
            theirs = _pairs([_pair(one.lock(f"theirs:{i}", timeout=30)) for i in range(10)], seconds)
        figures += [
            _figure("8 computing, 10 threads: pair p50", ours, theirs, statistics.median, at_most=1.0),
            _figure("8 computing, 10 threads: longest pair", ours, theirs, max),
        ]
        for computing, lease in _LEASES[:1] if quick else _LEASES:
            say(f"    ... {computing} computing threads, ten holds with a lease of {lease:g} s")
            lost = _lost_holds(nodes, computing, lease)
            what = f"{computing} computing, 10 threads: holds lost of 10, lease {lease:g} s"
            figures.append(Figure("busy", what, "", lost, 10, lost / 10, "ratio <= 0", lost == 0))
    return figures


@contextmanager
def _computing(threads: int) -> Iterator[None]:
    """Let that many threads of this process compute, and nothing else."""
    over = False

    def compute() -> None:
        number = 0
        while not over:
            for _ in range(1000):
                number += 1

    started = [threading.Thread(target=compute, daemon=True) for _ in range(threads)]
    for thread in started:
        thread.start()
    try:
        yield
    finally:
        over = True
        for thread in started:
            thread.join()


def _pair(lock: object) -> Callable[[], None]:
    def pair() -> None:
        if not lock.acquire():
            raise RuntimeError("an uncontended lock was refused")
        lock.release()

    pair()  # connects
    return pair


def _pairs(pairs: list[Callable[[], None]], seconds: float) -> list[float]:
    """Repeat each pair in a thread of its own for that many seconds; return how long each took."""
    times: list[float] = []
    end = time.perf_counter() + seconds

    def work(pair: Callable[[], None]) -> None:
        while (begin := time.perf_counter()) < end:
            pair()
            times.append(time.perf_counter() - begin)

    threads = [threading.Thread(target=work, args=(pair,)) for pair in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return times


async def _one_task(nodes: LocalNodes, seconds: float) -> list[float]:
    times = []
    async with AsyncClient(nodes.urls, restart_guard=0.0) as client:
        lock = client.get_lock("task")
        end = time.perf_counter() + seconds
        while (begin := time.perf_counter()) < end:
            await lock.acquire()
            await lock.release()
            times.append(time.perf_counter() - begin)
    return times[1:]  # the first one connects


def _lost_holds(nodes: LocalNodes, computing: int, lease: float) -> int:
    """Return how many of ten holds are lost within 1.1 leases, beside ten threads that lock."""
    lost: list[HoldLost] = []
    listen = [lambda event: lost.append(event) if isinstance(event, HoldLost) else None]
    with Client(nodes.urls, restart_guard=0.0, lease=lease, listeners=listen) as client:
        held = [client.get_lock(f"held:{i}") for i in range(10)]
        for lock in held:
            lock.acquire()
        with _computing(computing):
            _pairs([_pair(client.get_lock(f"beside:{i}")) for i in range(10)], 1.1 * lease)
        count = len(lost)
        for lock in held:
            if lock.owned():
                lock.release()
    return count


def _figure(
    what: str,
    ours: list[float],
    theirs: list[float],
    of: Callable[[list[float]], float],
    *,
    at_most: float | None = None,
) -> Figure:
    mine, base = of(ours) * 1e3, of(theirs) * 1e3
    target, met = ("", None) if at_most is None else (f"ratio <= {at_most:g}", mine / base <= at_most)
    return Figure("busy", what, "ms", mine, base, mine / base, target, met)
