"""One process of `bench.contended`: `contender KIND THREADS URLS NUMBER`. Prints "ready", then reads begin and end."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from bench.peer_locks import PEERS, Pair, blocking

HOLD = 0.002
"""The length of the critical section in seconds."""

OWN_LEASE = " (new object, lease 10 s)"
"""The ending of a kind's name that selects its own lease, and a new lock object for each acquisition."""


def main() -> None:
    """Contend; print the turns, and the waits that were not over at the end, as JSON."""
    kind, threads, urls, number = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]), sys.argv[4]
    make = _maker(kind, urls)
    turns: list[list[tuple[str, float, float]]] = [[] for _ in range(threads)]
    unfinished: list[float] = []
    barrier = threading.Barrier(threads + 1)
    span: list[float] = []

    def work(index: int) -> None:
        take, give = make()
        barrier.wait()
        mine, (start, end) = turns[index], span
        time.sleep(max(start - time.monotonic(), 0))
        asked, waits = time.monotonic(), False
        while time.monotonic() < end:
            waits = not take()
            if waits:
                continue
            had = time.monotonic()
            time.sleep(HOLD)
            give()
            mine.append((f"{number}.{index}", had - asked, had))
            asked = time.monotonic()
        if waits:
            unfinished.append(time.monotonic() - asked)

    workers = [threading.Thread(target=work, args=(i,)) for i in range(threads)]
    for worker in workers:
        worker.start()
    print("ready", flush=True)
    span.extend(map(float, sys.stdin.readline().split()))
    barrier.wait()
    for worker in workers:
        worker.join()
    print(json.dumps({"turns": [turn for each in turns for turn in each], "unfinished": unfinished}))


def _maker(kind: str, urls: list[str]) -> Callable[[], Pair]:
    """Return a function that makes the two functions of a thread: acquire, which may fail, and release."""
    name = f"contended:{kind}"
    if kind == "bare":
        from bench.floor import BareLock

        def bare() -> Pair:
            lock = BareLock([urlsplit(url).port or 0 for url in urls], name)
            return lock.acquire, lock.release

        return bare
    if kind in PEERS:
        return _peer(kind, urls)

    from redsync import Client
    from redsync._kinds import KINDS

    make = KINDS[kind.removesuffix(OWN_LEASE)].maker(Client(urls, restart_guard=0.0))

    def kept() -> Pair:
        lock = make(name)
        return lock.acquire, lock.release

    def remade() -> Pair:
        make(name)  # the first call imports modules
        return lambda: make(name, lease=10.0).acquire(), lambda: make(name).release()

    return remade if kind.endswith(OWN_LEASE) else kept


def _peer(kind: str, urls: list[str]) -> Callable[[], Pair]:
    peer = PEERS[kind]
    assert peer.maker is not None
    make, name = peer.maker(urls), f"contended:{kind}"
    pair = blocking(make(name)) if peer.is_async else None

    def patient() -> Pair:
        take, give = pair or make(name)

        def attempt() -> bool:
            try:
                return bool(take())
            except Exception:  # some of these libraries raise an error if the lock is held
                return False

        def release() -> None:
            with contextlib.suppress(Exception):  # it had expired
                give()

        return attempt, release

    return patient


if __name__ == "__main__":
    main()
