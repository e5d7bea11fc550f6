"""One process of `bench.peers`: `peer NAME URLS`. Says "ready"; each line that it reads is an order to carry out.

An order is a JSON object: how many `pairs` of acquire and release to make, or for how many `seconds`. The answer is a
JSON object too: of the pairs that were granted, `p50`, `p99` and `cpu` in microseconds; how many were `tried` and
`granted`. Names are those of `peer_locks`, and of `OURS`.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

from bench.measure import percentile
from bench.peer_locks import PEERS, Pair


def _floor(urls: list[str]) -> Pair:
    from bench.floor import BareLock

    lock = BareLock([urlsplit(url).port or 0 for url in urls], "peers")
    return lock.acquire, lock.release


def _redsync(urls: list[str]) -> Pair:
    from redsync import Client

    lock = Client(urls, restart_guard=0.0).get_lock("peers")
    return lock.acquire, lock.release


def _redsync_asyncio(urls: list[str]) -> Pair:
    from redsync import AsyncClient

    lock = AsyncClient(urls, restart_guard=0.0).get_lock("peers")
    return lock.acquire, lock.release


OURS: dict[str, Callable[[list[str]], Pair]] = {
    "floor": _floor,
    "redsync": _redsync,
    "redsync asyncio": _redsync_asyncio,
}
"""What stands next to the peers; a name may have the suffix ", 1 server"."""


def main() -> None:
    """Carry out orders until there are no more."""
    name, urls = sys.argv[1], json.loads(sys.argv[2])
    bare = name.removesuffix(", 1 server")
    if bare != name:
        urls = urls[:1]
    is_async = bare == "redsync asyncio" if bare in OURS else PEERS[bare].is_async
    if is_async:
        asyncio.run(_serve_async(bare, urls))
        return
    take, give = _make(bare, urls)
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(_carry_out(json.loads(line), take, give)), flush=True)


async def _serve_async(name: str, urls: list[str]) -> None:
    take, give = _make(name, urls)
    print("ready", flush=True)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        print(json.dumps(await _carry_out_async(json.loads(line), take, give)), flush=True)


def _make(name: str, urls: list[str]) -> Pair:
    if name in OURS:
        return OURS[name](urls)
    maker = PEERS[name].maker
    assert maker is not None
    return maker(urls)("peers")


class _Account:
    """Counts pairs, until the order is carried out."""

    def __init__(self, order: dict[str, float]) -> None:
        self._pairs = order.get("pairs", float("inf"))
        self._end = time.perf_counter() + order.get("seconds", float("inf"))
        self._cpu = time.process_time_ns()
        self._nanoseconds: list[int] = []
        self._tried = 0

    def goes_on(self) -> bool:
        """Begin another pair, unless the order is carried out."""
        if self._tried >= self._pairs or time.perf_counter() >= self._end:
            return False
        self._tried += 1
        return True

    def granted(self, nanoseconds: int) -> None:
        self._nanoseconds.append(nanoseconds)

    def answer(self) -> dict[str, float]:
        cpu, granted = time.process_time_ns() - self._cpu, self._nanoseconds
        figures = [percentile(granted, 50), percentile(granted, 99), cpu / len(granted)] if granted else [0.0] * 3
        p50, p99, each = (figure / 1e3 for figure in figures)
        return {"p50": p50, "p99": p99, "cpu": each, "tried": self._tried, "granted": len(granted)}


def _carry_out(order: dict[str, float], take: Callable[[], Any], give: Callable[[], Any]) -> dict[str, float]:
    account, clock = _Account(order), time.perf_counter_ns
    while account.goes_on():
        start = clock()
        try:
            if not take():
                continue
            give()
        except Exception:  # each library has its own errors; in all cases the lock was not acquired
            continue
        account.granted(clock() - start)
    return account.answer()


async def _carry_out_async(
    order: dict[str, float], take: Callable[[], Awaitable[Any]], give: Callable[[], Awaitable[Any]]
) -> dict[str, float]:
    account, clock = _Account(order), time.perf_counter_ns
    while account.goes_on():
        start = clock()
        try:
            if not await take():
                continue
            await give()
        except Exception:
            continue
        account.granted(clock() - start)
    return account.answer()


if __name__ == "__main__":
    main()
