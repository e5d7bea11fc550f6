"""What many names and many clients cost: memory of the nodes and of the process, connections, latency, idle CPU."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import redis

from bench.measure import Figure, say, time_pairs
from redsync import Client, Lock
from redsync.testing import LocalNodes

_PAIRS, _IDLE = 300, 3.0


def run(*, quick: bool) -> list[Figure]:
    """Measure 100,000 held names, then 200 clients; ten times fewer of both in a quick run."""
    names, clients = (10_000, 20) if quick else (100_000, 200)
    with LocalNodes(5) as nodes:
        say(f"    ... {names:,} names")
        figures = _measure_names(nodes, names)
    with LocalNodes(5) as nodes:
        say(f"    ... {clients} clients")
        return figures + _measure_clients(nodes, clients)


def _measure_names(nodes: LocalNodes, names: int) -> list[Figure]:
    what = f"{names:,} names held"
    with nodes.client() as client, nodes.client() as other:
        alone, before = _pair(other.get_lock("pair")), _memory_of(nodes)
        locks = [client.get_lock(f"service:object:{i}") for i in range(names)]
        for lock in locks:
            if not lock.acquire():
                raise RuntimeError("a lock that nobody else wants was refused")
        held, beside = _memory_of(nodes), _pair(other.get_lock("pair"))
        for lock in locks:
            lock.release()
        after = _memory_of(nodes)
    return [
        Figure("sizes", f"{what}: a node's memory per name", "B", (held - before) / names),
        Figure("sizes", f"{what}: of that left after the release of all", "B", (after - before) / names),
        Figure("sizes", f"{what}: another client's pair, p50 (floor: before)", "us", beside, alone, beside / alone),
    ]


def _measure_clients(nodes: LocalNodes, count: int) -> list[Figure]:
    what = f"{count} clients"
    with ExitStack() as stack:
        first = stack.enter_context(nodes.client())
        lock = first.get_lock("pair")
        alone, before, memory, connected = _pair(lock), _memory_of(nodes), _resident(), _connections(nodes)
        begin = time.perf_counter()
        clients = [stack.enter_context(nodes.client()) for _ in range(count)]
        _use(clients)
        opening = time.perf_counter() - begin
        cpu, begin = time.process_time(), time.perf_counter()
        time.sleep(_IDLE)
        idle = 100 * (time.process_time() - cpu) / (time.perf_counter() - begin)
        beside = _pair(lock)
        grown, resident, connections = _memory_of(nodes) - before, _resident() - memory, _connections(nodes) - connected
    return [
        Figure("sizes", f"{what}: open all, and use each once", "s", opening),
        Figure("sizes", f"{what}: connections per node and client", "", connections / count),
        Figure("sizes", f"{what}: memory of the process per client", "B", resident / count),
        Figure("sizes", f"{what}: a node's memory per client", "B", grown / count),
        Figure("sizes", f"{what}: CPU while idle, all of them", "% core", idle),
        Figure("sizes", f"{what}: one client's pair, p50 (floor: alone)", "us", beside, alone, beside / alone),
    ]


def _use(clients: Sequence[Client]) -> None:
    for i, client in enumerate(clients):
        with client.get_lock(f"own:{i}"):
            pass


def _pair(lock: Lock) -> float:
    time_pairs(lock.acquire, lock.release, _PAIRS)
    return time_pairs(lock.acquire, lock.release, _PAIRS).p50


def _memory_of(nodes: LocalNodes) -> float:
    return statistics.median(_info(url, "memory", "used_memory") for url in nodes.urls)


def _connections(nodes: LocalNodes) -> float:
    return statistics.median(_info(url, "clients", "connected_clients") for url in nodes.urls)


def _info(url: str, section: str, field: str) -> int:
    with redis.Redis.from_url(url) as node:
        value: int = node.info(section)[field]
        return value


def _resident() -> int:
    """Return the bytes of memory that this process has now; 0 where the system does not tell."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * 4096 if statm.exists() else 0
