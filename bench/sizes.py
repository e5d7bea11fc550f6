"""The costs of many names and many clients: memory of nodes and processes, connections, latency, CPU."""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import redis

from bench.crowd import Opened
from bench.floor import BareRenewals
from bench.measure import Figure, resident, say, time_pairs
from redsync import Lock
from redsync.testing import LocalNodes

_PAIRS = 300
_WINDOW = 3.0
_PROCESSES = 4
"""Processes for the many clients: two for each core of a small machine."""

_MINUTES_MS = 600_000
"""Lease of the floor's claims in milliseconds; nothing renews them."""


def run(*, quick: bool) -> list[Figure]:
    """Measure 2,000 and 100,000 held names, then 20 and 200 clients; a quick run takes only the smaller numbers."""
    figures = []
    for names in (2_000,) if quick else (2_000, 100_000):
        say(f"    ... {names:,} names")
        figures += _measure_names(names)
    for clients in (20,) if quick else (20, 200):
        say(f"    ... {clients} clients")
        figures += _measure_clients(clients)
    return figures


def _measure_names(names: int) -> list[Figure]:
    what = f"{names:,} names"
    with LocalNodes(1) as nodes:
        before = _memory_of(nodes)
        with BareRenewals(nodes.ports, names, _MINUTES_MS):
            bare = (_memory_of(nodes) - before) / names
    with LocalNodes(5) as nodes, nodes.client() as client, nodes.client() as other:
        pair = other.get_lock("pair")
        alone, before, mine = _pair(pair), _memory_of(nodes), resident()
        locks = [client.get_lock(f"service:object:{i}") for i in range(names)]
        for lock in locks:
            if not lock.acquire():
                raise RuntimeError("an uncontended lock was refused")
        held, held_here, beside = _memory_of(nodes) - before, resident() - mine, _pair(pair)
        for lock in locks:
            lock.release()
        left, left_here = _memory_of(nodes) - before, resident() - mine
    return [
        Figure("sizes", f"{what} held: a node's memory per name", "B", held / names, bare, held / names / bare),
        Figure("sizes", f"{what} held: memory of the client per name", "B", held_here / names),
        Figure(
            "sizes", f"{what} held: another client's pair, p50 (floor: before)", "us", beside, alone, beside / alone
        ),
        Figure("sizes", f"{what} released: a node's memory per name", "B", left / names),
        Figure(
            "sizes", f"{what} released: memory of the client per name, with its lock object", "B", left_here / names
        ),
    ]


def _measure_clients(count: int) -> list[Figure]:
    what = f"{_PROCESSES} x {count // _PROCESSES} clients"
    with LocalNodes(5) as nodes, nodes.client() as client:
        pair = client.get_lock("pair")
        alone, before, connected = _pair(pair), _memory_of(nodes), _connections(nodes)
        with _crowd(nodes, count) as crowd:
            grown, connections = _memory_of(nodes) - before, _connections(nodes) - connected
            idle_cpu, idle = crowd.beside(pair, pairs=0)
            busy_cpu, busy = crowd.beside(pair, pairs=int(_WINDOW))
    opening = sum(opened["seconds"] for opened in crowd.opened)
    memory = sum(opened["memory"] for opened in crowd.opened)
    return [
        Figure("sizes", f"{what}: open one, and use it once", "ms", opening / count * 1e3),
        Figure("sizes", f"{what}: connections per node and client", "", connections / count),
        Figure("sizes", f"{what}: memory of their process per client", "B", memory / count),
        Figure("sizes", f"{what}: a node's memory per client", "B", grown / count),
        Figure("sizes", f"{what}, idle: CPU of all", "% core", idle_cpu),
        Figure("sizes", f"{what}, idle: another one's pair, p50 (floor: alone)", "us", idle, alone, idle / alone),
        Figure("sizes", f"{what}, a pair per second each: CPU of all", "% core", busy_cpu),
        Figure(
            "sizes",
            f"{what}, a pair per second each: another one's, p50 (floor: alone)",
            "us",
            busy,
            alone,
            busy / alone,
        ),
    ]


class _Crowd:
    """The processes with the many clients, and the costs that each reports."""

    def __init__(self, processes: Sequence[subprocess.Popen[str]]) -> None:
        self._processes = processes
        self.opened: list[Opened] = [json.loads(_line(process)) for process in processes]

    def beside(self, lock: Lock, pairs: int) -> tuple[float, float]:
        """Let each client make `pairs` pairs in a window; return their CPU in percent, and a pair of `lock` in us."""
        start = time.monotonic() + 0.1
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(f"{start} {start + _WINDOW} {pairs}\n")
            process.stdin.flush()
        time.sleep(max(start - time.monotonic(), 0))
        latency = _pair(lock)
        return 100 * sum(float(_line(process)) for process in self._processes) / _WINDOW, latency


@contextmanager
def _crowd(nodes: LocalNodes, count: int) -> Iterator[_Crowd]:
    with ExitStack() as stack:
        processes = []
        for number in range(_PROCESSES):
            command = [
                sys.executable,
                "-m",
                "bench.crowd",
                str(count // _PROCESSES),
                str(number),
                json.dumps(nodes.urls),
            ]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            processes.append(stack.enter_context(process))
            stack.callback(_kill, process)
        yield _Crowd(processes)


def _kill(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    if not (line := process.stdout.readline()):
        raise RuntimeError("a process with many clients failed")
    return line


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
