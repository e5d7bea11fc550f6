"""asyncio: one task alone, and many tasks with a lock each, next to a bare event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import partial

from bench.aio_floor import BareAioLock, BareAioQuorum
from bench.measure import Figure, Sample, compare, interleave, percentile
from redsync import AsyncClient, AsyncLock
from redsync.testing import LocalNodes

_TASKS, _MANY_TASKS = 100, 1000
_WARM_UP = 300


def run(*, quick: bool) -> list[Figure]:
    """Measure a pair of one task, and the throughput of many."""
    with LocalNodes(5) as nodes, asyncio.Runner() as runner:
        client = AsyncClient(nodes.urls, restart_guard=0.0)
        floor = BareAioQuorum()
        runner.run(floor.connect(nodes.ports))
        try:
            return _measure(runner, client, floor, quick=quick)
        finally:
            runner.run(client.close())
            floor.close()


def _measure(runner: asyncio.Runner, client: AsyncClient, floor: BareAioQuorum, *, quick: bool) -> list[Figure]:
    alone = [client.get_lock("task"), BareAioLock(floor, "task")]
    for lock in alone:
        runner.run(_pairs(lock, _WARM_UP))
    sides = [partial(_in, runner, lock, 300) for lock in alone]
    ours, bare = interleave(sides, 12 if quick else 50)
    figures = [
        compare("tasks", "1 task: p50", "us", [s.p50 for s in ours], [s.p50 for s in bare], at_most=1.0),
        compare("tasks", "1 task: p99", "us", [s.p99 for s in ours], [s.p99 for s in bare]),
        compare("tasks", "1 task: client CPU", "us", [s.cpu for s in ours], [s.cpu for s in bare]),
    ]
    for tasks, pairs, at_least in ((_TASKS, 20, 1.2), (_MANY_TASKS, 2, None)):
        crowds: list[Sequence[AsyncLock | BareAioLock]] = [
            [client.get_lock(f"task:{i}") for i in range(tasks)],
            [BareAioLock(floor, f"task:{i}") for i in range(tasks)],
        ]
        for crowd in crowds:
            _throughput(runner, crowd, pairs)
        rates = interleave([partial(_throughput, runner, crowd, pairs) for crowd in crowds], 5 if quick else 20)
        figures.append(compare("tasks", f"{tasks:,} tasks", "pairs/s", *rates, at_least=at_least))
    return figures


def _in(runner: asyncio.Runner, lock: AsyncLock | BareAioLock, count: int) -> Sample:
    return runner.run(_pairs(lock, count))


async def _pairs(lock: AsyncLock | BareAioLock, count: int) -> Sample:
    """Acquire and release `count` times; return the latencies and the CPU time of this process."""
    clock = time.perf_counter_ns
    nanoseconds = []
    cpu = time.process_time_ns()
    for _ in range(count):
        start = clock()
        if not await lock.acquire():
            raise RuntimeError("an uncontended lock was refused")
        await lock.release()
        nanoseconds.append(clock() - start)
    cpu = time.process_time_ns() - cpu
    return Sample(percentile(nanoseconds, 50) / 1e3, percentile(nanoseconds, 99) / 1e3, cpu / count / 1e3)


def _throughput(runner: asyncio.Runner, locks: Sequence[AsyncLock | BareAioLock], pairs: int) -> float:
    async def crowd() -> None:
        await asyncio.gather(*[_pairs(lock, pairs) for lock in locks])

    begin = time.perf_counter()
    runner.run(crowd())
    return len(locks) * pairs / (time.perf_counter() - begin)
