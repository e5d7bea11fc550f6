"""One process of `bench.permits`: `taker NUMBER URLS`. Prints "ready"; then each line that it reads is an order.

An order is a JSON object with the `kind` and `name` of the synchronizer, its number of `permits`, the number of
`threads`, and the `start` and `end` on the machine's monotonic clock. The answer is a JSON object too, see `Answer`.
"""

from __future__ import annotations

import itertools
import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TypedDict

from redsync import Client
from redsync._protocols import acquiring

PER = 1.0
"""Seconds of the rate limiter's window."""


class Answer(TypedDict):
    """The result of an order.

    Attributes:
        taken: The number of acquisitions; all were released, except those of the rate limiter.
        rounds: The number of rounds that they took.
        at: The times of the rate limiter's acquisitions, in seconds of the machine's monotonic clock.
    """

    taken: int
    rounds: int
    at: list[float]


class _Rounds:
    """Counts the rounds in which this process asks for permits."""

    def __init__(self) -> None:
        self._count = itertools.count()
        self._looks = 0
        ask, count = acquiring._ask, self._count

        def counted(*args: Any) -> Any:
            next(count)
            return ask(*args)

        acquiring._ask = counted

    def so_far(self) -> int:
        # Reading the counter advances it, too.
        self._looks += 1
        return next(self._count) + 1 - self._looks


def main() -> None:
    """Run orders until there are no more."""
    number, client = sys.argv[1], Client(json.loads(sys.argv[2]), restart_guard=0.0)
    rounds = _Rounds()
    print("ready", flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        before = rounds.so_far()
        results = _crowd(client, number, order)
        at = sorted(at for _, each in results for at in each)
        answer = Answer(taken=sum(taken for taken, _ in results), rounds=rounds.so_far() - before, at=at)
        print(json.dumps(answer), flush=True)
    client.close()


def _crowd(client: Client, number: str, order: dict) -> list[tuple[int, list[float]]]:
    """Let threads acquire and release; return each thread's count, and the times for the rate limiter."""
    results: list[tuple[int, list[float]]] = []
    start, end = order["start"], order["end"]

    def repeat(take: Callable[[], object]) -> None:
        time.sleep(max(start - time.monotonic(), 0))
        taken = 0
        while time.monotonic() < end:
            take()
            taken += 1
        results.append((taken, []))

    def limited() -> None:
        limiter = client.get_rate_limiter(order["name"], order["permits"], PER)
        time.sleep(max(start - time.monotonic(), 0))
        at: list[float] = []
        while (left := end - time.monotonic()) > 0:
            if limiter.acquire(timeout=left):
                at.append(time.monotonic())
        results.append((len(at), at))

    def target(index: int) -> Callable[[], None]:
        if order["kind"] == "rate":
            return limited
        if order["kind"] == "locks":
            lock = client.get_lock(f"{order['name']}:{number}:{index}")
            return lambda: repeat(lambda: (lock.acquire(), lock.release()))
        semaphore = client.get_semaphore(order["name"], order["permits"])
        return lambda: repeat(lambda: semaphore.acquire().release())  # type: ignore[union-attr]

    threads = [threading.Thread(target=target(index)) for index in range(order["threads"])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(results) < len(threads):
        raise RuntimeError("a thread of the benchmark failed")
    return results


if __name__ == "__main__":
    main()
