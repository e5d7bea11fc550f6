"""The read-write lock: a pair next to one of the plain lock, a node's time per script, and reads alongside a writer.

The floor of all figures here is the plain lock, or ten readers. A read takes 2 ms, as from a cache over a network, so
one at a time makes fewer than 500 per second; each second a writer takes 5 ms.
"""

from __future__ import annotations

import statistics
import threading
import time
from contextlib import AbstractContextManager
from typing import Any

import redis

from bench.measure import Figure
from redsync import Client
from redsync._core.keys import LockKeys
from redsync._core.scripts import Script
from redsync.testing import LocalNodes

_READ, _WRITE, _EVERY = 0.002, 0.005, 1.0
_READERS = (1, 4, 16)
_CROWD = 5_000


def run(*, quick: bool) -> list[Figure]:
    """Measure on five nodes, the scripts on one of them."""
    with LocalNodes(5) as nodes, Client(nodes.urls, restart_guard=0.0) as client:
        return [
            *_pairs(client, 3.0 if quick else 15.0),
            *_scripts(nodes.urls[0]),
            *_reads(client, 2.0 if quick else 6.0),
        ]


def _pairs(client: Client, seconds: float) -> list[Figure]:
    pair, plain = client.get_read_write_lock("pair"), client.get_lock("plain")
    locks = {"plain": plain, "read": pair.read_lock, "write": pair.write_lock}
    rounds: list[dict[str, float]] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        rounds.append({name: statistics.median(_time(lock) for _ in range(25)) for name, lock in locks.items()})
    figures = []
    for mode in ("read", "write"):
        ours, floor = (statistics.median(each[name] for each in rounds) for name in (mode, "plain"))
        ratio = statistics.median(each[mode] / each["plain"] for each in rounds)
        target = "<= 1.15 x plain lock"
        figures.append(Figure("readers", f"{mode} lock, pair p50", "us", ours, floor, ratio, target, ratio <= 1.15))
    return figures


def _time(lock: Any) -> float:
    begin = time.perf_counter()
    lock.acquire()
    lock.release()
    return (time.perf_counter() - begin) * 1e6


def _scripts(url: str) -> list[Figure]:
    """Return the time that a node reports for a reader's acquire, renewal and release, and for a refused writer."""
    connection = redis.Redis.from_url(url)
    for script in Script.shipped():
        connection.script_load(script.source)

    def call(name: str, keys: tuple[bytes, ...], *args: Any) -> None:
        connection.evalsha(Script.load(name).sha.decode(), len(keys), *keys, *args)  # type: ignore[arg-type]

    def fill(count: int) -> tuple[bytes, ...]:
        keys = LockKeys.of(b"", b"crowd of %d" % count).all
        for number in range(count):
            call("read_write_lock_acquire", keys, f"r:crowd-{number}:1", 1, 600_000, 0)
        return keys

    def cost(keys: tuple[bytes, ...]) -> float:
        connection.config_resetstat()
        for number in range(50):
            call("read_write_lock_acquire", keys, f"r:me-{number}:1", 1, 30_000, 0)
            call("read_write_lock_acquire", keys, "w:writer:1", 1, 30_000, 0)
            call("read_write_lock_renew", keys[:1], f"r:me-{number}:1", 1, 30_000)
            call("read_write_lock_release", keys, f"r:me-{number}:1", 0, "")
        return float(connection.info("commandstats")["cmdstat_evalsha"]["usec_per_call"])  # type: ignore[index]

    few, many = fill(10), fill(_CROWD)
    rounds = [(cost(many), cost(few)) for _ in range(20)]
    ours, floor = (statistics.median(costs) for costs in zip(*rounds, strict=True))
    ratio = statistics.median(many_cost / few_cost for many_cost, few_cost in rounds)
    connection.close()
    what = f"script with {_CROWD:,} readers (floor: 10)"
    return [Figure("readers", what, "us", ours, floor, ratio, "<= 1.5 x ten readers", ratio <= 1.5)]


def _reads(client: Client, seconds: float) -> list[Figure]:
    figures = []
    for readers in _READERS:
        pair, plain = client.get_read_write_lock(f"cache {readers}"), client.get_lock(f"plain {readers}")
        ours, waits = _count(pair.read_lock, pair.write_lock, readers, seconds)
        floor, plain_waits = _count(plain, plain, readers, seconds)
        what = f"{readers} readers, 1 write per second"
        figures += [
            Figure("readers", f"{what}: reads", "1/s", ours, floor, ours / floor),
            Figure("readers", f"{what}: longest wait of the writer", "ms", max(waits), max(plain_waits)),
        ]
    return figures


def _count(
    reading: AbstractContextManager[Any], writing: AbstractContextManager[Any], readers: int, seconds: float
) -> tuple[float, list[float]]:
    """Return the number of reads per second, and the milliseconds that each write had to wait."""
    end = time.monotonic() + seconds
    reads = [0] * readers

    def read(number: int) -> None:
        while time.monotonic() < end:
            with reading:
                time.sleep(_READ)
            reads[number] += 1

    threads = [threading.Thread(target=read, args=(number,)) for number in range(readers)]
    for thread in threads:
        thread.start()
    waits = []
    while time.monotonic() + _EVERY / 2 < end:
        time.sleep(_EVERY / 2)
        begin = time.perf_counter()
        with writing:
            waits.append((time.perf_counter() - begin) * 1e3)
            time.sleep(_WRITE)
        time.sleep(_EVERY / 2)
    for thread in threads:
        thread.join()
    return sum(reads) / seconds, waits
