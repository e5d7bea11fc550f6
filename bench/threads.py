"""Throughput of many threads with a lock each: one shared client, next to bare sockets for each thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial

from bench.floor import BareLock
from bench.measure import Figure, compare, interleave, say
from redsync import Client, Lock
from redsync.testing import LocalNodes

_JUDGED = 16


class Crew:
    """Threads that wait for the start of a round, then repeat their task for a given time.

    They live for all rounds: the figures exclude the start of threads, and the first steps of new owners.
    """

    def __init__(self, tasks: Sequence[Callable[[], None]]) -> None:
        self._counts = [0] * len(tasks)
        self._deadline = 0.0
        self._over = False
        self._errors: list[BaseException] = []
        self._start = threading.Barrier(len(tasks) + 1)
        self._end = threading.Barrier(len(tasks) + 1)
        self._threads = [threading.Thread(target=self._work, args=item, daemon=True) for item in enumerate(tasks)]
        for thread in self._threads:
            thread.start()

    def _work(self, index: int, task: Callable[[], None]) -> None:
        clock = time.perf_counter
        try:
            while True:
                self._start.wait()
                if self._over:
                    return
                deadline, count = self._deadline, 0
                while clock() < deadline:
                    task()
                    count += 1
                self._counts[index] = count
                self._end.wait()
        except threading.BrokenBarrierError:
            return
        except BaseException as error:
            self._errors.append(error)
            self._end.abort()
            self._start.abort()

    def run(self, seconds: float) -> tuple[float, float]:
        """Let all threads work for `seconds`; return their tasks per second, and the smallest share of a thread.

        The share is relative to the mean: 1.0 if all threads did the same number of tasks.
        """
        begin = time.perf_counter()
        self._deadline = begin + seconds
        try:
            self._start.wait()
            self._end.wait()
        except threading.BrokenBarrierError:
            raise RuntimeError("a thread of the benchmark failed") from self._errors[0]
        total = sum(self._counts)
        return total / (time.perf_counter() - begin), min(self._counts) * len(self._counts) / total

    def dismiss(self) -> None:
        """End the threads."""
        self._over = True
        if not self._start.broken:
            self._start.wait()
        for thread in self._threads:
            thread.join()


def run(*, quick: bool) -> list[Figure]:
    """Measure 16 threads, and other numbers for information."""
    figures = []
    with LocalNodes(5) as nodes, nodes.client() as client:
        for threads in (2, _JUDGED) if quick else (1, 2, 4, 8, _JUDGED, 64):
            judged = threads == _JUDGED
            window = 0.25 if quick else 0.3
            rounds = 5 if quick else 24 if judged else 10
            say(f"    ... {threads} thread{'s' * (threads > 1)}")
            figures += _run_with(nodes, client, threads, window, rounds)
    return figures


def _run_with(nodes: LocalNodes, client: Client, threads: int, window: float, rounds: int) -> list[Figure]:
    with ExitStack() as stack:
        locks = [client.get_lock(f"thread:{i}") for i in range(threads)]
        bare = [stack.enter_context(BareLock(nodes.ports, f"thread:{i}")) for i in range(threads)]
        crews = [Crew([partial(_pair, lock) for lock in locks]), Crew([partial(_pair, lock) for lock in bare])]
        for crew in crews:
            stack.callback(crew.dismiss)
            crew.run(window)
        ours, floor = interleave([partial(crew.run, window) for crew in crews], rounds)
    rates = [rate for rate, _ in ours], [rate for rate, _ in floor]
    if threads != _JUDGED:
        return [compare("threads", f"{threads} thread{'s' * (threads > 1)}", "pairs/s", *rates)]
    shares = [share for _, share in ours], [share for _, share in floor]
    return [
        compare("threads", f"{threads} threads", "pairs/s", *rates, at_least=0.6),
        compare("threads", f"{threads} threads: slowest thread / mean", "x", *shares),
    ]


def _pair(lock: Lock | BareLock) -> None:
    if not lock.acquire():
        raise RuntimeError("an uncontended lock was refused")
    lock.release()
