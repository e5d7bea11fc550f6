"""One process of `bench.contended`: `contender KIND THREADS URLS NUMBER`. Says "ready", reads when to begin and end."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from bench.contended import HOLD, OWN_LEASE
from redsync import Client
from redsync._kinds import KINDS

_NAME = "contended"


def main() -> None:
    """Contend, and print what was had as JSON."""
    kind, threads, urls, number = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]), sys.argv[4]
    make = _maker(kind, urls)
    turns: list[list[tuple[str, float, float]]] = [[] for _ in range(threads)]
    barrier = threading.Barrier(threads + 1)
    span: list[float] = []

    def work(index: int) -> None:
        take, give = make()
        barrier.wait()
        mine, (start, end) = turns[index], span
        time.sleep(max(start - time.monotonic(), 0))
        while (asked := time.monotonic()) < end:
            if not take():
                continue
            had = time.monotonic()
            time.sleep(HOLD)
            give()
            mine.append((f"{number}.{index}", had - asked, had))

    workers = [threading.Thread(target=work, args=(i,)) for i in range(threads)]
    for worker in workers:
        worker.start()
    print("ready", flush=True)
    span.extend(map(float, sys.stdin.readline().split()))
    barrier.wait()
    for worker in workers:
        worker.join()
    print(json.dumps([turn for each in turns for turn in each]))


def _maker(kind: str, urls: list[str]) -> Callable[[], tuple[Callable[[], bool], Callable[[], object]]]:
    """Return what makes a thread's two functions: take, which may give up, and give back."""
    if kind == "bare":
        from bench.floor import BareLock

        def bare() -> tuple[Callable[[], bool], Callable[[], object]]:
            lock = BareLock([urlsplit(url).port or 0 for url in urls], _NAME)
            return lock.acquire, lock.release

        return bare
    if kind == "redlock-py":
        from redlock import Redlock

        manager = Redlock([{"host": "127.0.0.1", "port": urlsplit(url).port} for url in urls], retry_count=1)

        def redlock() -> tuple[Callable[[], bool], Callable[[], object]]:
            held = []

            def take() -> bool:
                lock = manager.lock(_NAME, 10_000)
                if lock:
                    held.append(lock)
                return bool(lock)

            return take, lambda: manager.unlock(held.pop())

        return redlock
    if kind == "pottery":
        import redis
        from pottery import Redlock as Pottery

        masters = {redis.Redis.from_url(url) for url in urls}

        def pottery() -> tuple[Callable[[], bool], Callable[[], object]]:
            lock = Pottery(key=_NAME, masters=masters, auto_release_time=10)
            return lambda: lock.acquire(timeout=1), lock.release

        return pottery
    make = KINDS[kind.removesuffix(OWN_LEASE)].maker(Client(urls, restart_guard=0.0))

    def kept() -> tuple[Callable[[], bool], Callable[[], object]]:
        lock = make(_NAME)
        return lock.acquire, lock.release

    def anew() -> tuple[Callable[[], bool], Callable[[], object]]:
        make(_NAME)  # The first one loads modules.
        return lambda: make(_NAME, lease=10.0).acquire(), lambda: make(_NAME).release()

    return anew if kind.endswith(OWN_LEASE) else kept


if __name__ == "__main__":
    main()
