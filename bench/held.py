"""The cost of holding many locks for a long time: the watchdog's share of a core, its threads, commands and memory.

A separate process holds the locks, because its CPU time is the figure. Meanwhile its main thread renews as many bare
claims, once a period, and measures its own CPU time; the rest of the process's CPU time is redsync's.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypedDict
from urllib.parse import urlsplit

import redis

from bench.floor import BareRenewals
from bench.measure import Figure
from redsync import Client, HoldLost
from redsync.testing import LocalNodes

_DEFAULT_LEASE = 30.0
_QUICK_LEASE = 6.0
_TARGETS = {1_000: 0.3, 10_000: 2.0}
_MOST = 100_000
"""Held once at the end, because that takes minutes; a quick run omits it."""


class Report(TypedDict):
    """The process's results: seconds of CPU in the window, seconds to acquire and release all, bytes, and counts."""

    acquiring: float
    releasing: float
    memory: float
    seconds: float
    periods: int
    cpu: float
    floor_cpu: float
    threads: int
    calls: float
    floor_calls: int
    lost: int


def run(*, quick: bool) -> list[Figure]:
    """Measure 1,000 and 10,000 held locks at the same time, each on their own five nodes; then 100,000."""
    # In a window of whole periods, each hold is renewed once per period. A short lease makes short periods: the work
    # per period is then scaled to the default lease, with which it is done less often.
    lease, periods = (_QUICK_LEASE, 2) if quick else (_DEFAULT_LEASE, 2)
    with ThreadPoolExecutor() as pool:
        reports = dict(zip(_TARGETS, pool.map(lambda count: _measure(count, lease, periods), _TARGETS), strict=True))
    if not quick:
        reports[_MOST] = _measure(_MOST, lease, periods)
    return [figure for count, report in reports.items() for figure in _figures(count, report, lease)]


def _figures(count: int, report: Report, lease: float) -> list[Figure]:
    what, threads, lost = f"{count:,} held", report["threads"], report["lost"]
    figures = []
    ours = 100 * report["cpu"] / report["seconds"]
    floor = 100 * report["floor_cpu"] / report["seconds"]
    if lease != _DEFAULT_LEASE:
        figures.append(Figure("held", f"{what}: CPU, lease {lease:g} s", "% core", ours, floor, ours / floor))
        ours, floor = ours * lease / _DEFAULT_LEASE, floor * lease / _DEFAULT_LEASE
    scaled = "" if lease == _DEFAULT_LEASE else " (scaled)"
    target = _TARGETS.get(count)
    return [
        *figures,
        Figure(
            "held",
            f"{what}: CPU, lease {_DEFAULT_LEASE:g} s{scaled}",
            "% core",
            ours,
            floor,
            ours / floor,
            "" if target is None else f"redsync <= {target:g} %",
            None if target is None else ours <= target,
        ),
        Figure("held", f"{what}: threads", "", threads, None, None, "redsync <= 1", threads <= 1),
        Figure("held", f"{what}: commands per node, period", "", report["calls"], report["floor_calls"]),
        Figure("held", f"{what}: memory of the client per lock", "B", report["memory"] / count),
        Figure("held", f"{what}: acquire all, one by one", "s", report["acquiring"]),
        Figure("held", f"{what}: release all, one by one", "s", report["releasing"]),
        Figure("held", f"{what}: lost", "", lost, None, None, "redsync = 0", not lost),
    ]


def _measure(count: int, lease: float, periods: int) -> Report:
    with LocalNodes(5) as nodes:
        command = [sys.executable, "-m", "bench.held", str(count), str(lease), str(periods), *nodes.urls]
        result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=900)
    report: Report = json.loads(result.stdout)
    return report


def _hold(count: int, lease: float, periods: int, urls: list[str]) -> Report:
    """Hold `count` locks for `periods` periods; the body of the process."""
    period = lease / 3
    ports = [urlsplit(url).port or 0 for url in urls]
    lost: list[object] = []
    with (
        BareRenewals(ports, count, int(lease * 1000)) as floor,
        Client(urls, lease=lease, restart_guard=0.0, listeners=[_count_losses(lost)]) as client,
    ):
        memory, begin = _memory(), time.perf_counter()
        locks = [client.get_lock(f"held:{i}") for i in range(count)]
        renewed = begin
        for lock in locks:
            if not lock.acquire():
                raise RuntimeError("an uncontended lock was refused")
            if (now := time.perf_counter()) >= renewed + period:
                floor.renew()
                renewed = time.perf_counter()
                begin += renewed - now
        memory, acquiring = _memory() - memory, time.perf_counter() - begin
        commands = _commands(urls)
        # The threads that opened the first connections have ended by now.
        threads = 0
        begin, cpu, mine = time.perf_counter(), time.process_time(), time.thread_time()
        for i in range(periods):
            floor.renew()
            time.sleep(max(0.0, begin + (i + 1) * period - time.perf_counter()))
            threads = max(threads, threading.active_count() - 1)
        cpu, mine = time.process_time() - cpu, time.thread_time() - mine
        seconds = time.perf_counter() - begin
        calls = _commands(urls) - commands
        gone = sum(not lock.owned() for lock in locks)
        begin = time.perf_counter()
        for lock in locks:
            lock.release()
        report = Report(
            acquiring=acquiring,
            releasing=time.perf_counter() - begin,
            memory=memory,
            seconds=seconds,
            periods=periods,
            cpu=cpu - mine,
            floor_cpu=mine,
            threads=threads,
            calls=calls / len(urls) / periods - floor.commands,
            floor_calls=floor.commands,
            lost=max(gone, len(lost)),
        )
        print(json.dumps(report), flush=True)
    return report


def _count_losses(lost: list[object]) -> Callable[[object], object]:
    return lambda event: lost.append(event) if isinstance(event, HoldLost) else None


def _memory() -> int:
    """Return this process's peak memory so far, in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _commands(urls: list[str]) -> int:
    """Return how many scripts all nodes together have executed so far."""
    total = 0
    for url in urls:
        with redis.Redis.from_url(url) as node:
            total += node.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0)
    return total


if __name__ == "__main__":
    _hold(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
