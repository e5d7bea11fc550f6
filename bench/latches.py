"""The count-down latch: the time of each call, and until a waiter wakes up; next to a pair of the plain lock.

Each round sets the latch to 1, counts down and waits, each with a separate client, as in practice.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from functools import partial

from bench.measure import Figure, compare, interleave
from redsync import Client, CountDownLatch
from redsync.testing import LocalNodes

_REPEAT = 20


def run(*, quick: bool) -> list[Figure]:
    """Measure on five nodes; the floor is acquire and release of a plain lock."""
    rounds = 20 if quick else 80
    with LocalNodes(5) as nodes, nodes.client() as setting, nodes.client() as counting, nodes.client() as waiting:
        latches = [client.get_count_down_latch("latch") for client in (setting, counting, waiting)]
        sides = [partial(_time_calls, *latches), partial(_time_wake_up, *latches), partial(_time_pair, setting)]
        for side in sides:
            side()
        calls, wake_ups, pairs = interleave(sides, rounds)
    floor = [each["pair"] for each in pairs]
    figures = [
        compare("latch", f"{call} (floor: pair of a plain lock)", "us", [each[call] for each in calls], floor)
        for call in ("try_set_count", "count_down", "wait of an open one")
    ]
    told = [each["told"] for each in wake_ups]
    return [*figures, compare("latch", "from count_down to the end of a wait (floor: same)", "us", told, floor)]


def _time_pair(client: Client) -> dict[str, float]:
    lock = client.get_lock("plain")
    return {"pair": statistics.median(_time(lambda: (lock.acquire(), lock.release())) for _ in range(_REPEAT))}


def _time_calls(setting: CountDownLatch, counting: CountDownLatch, waiting: CountDownLatch) -> dict[str, float]:
    """Return the microseconds of each call of a round in which the latch has no waiter when it opens."""
    steps = {
        "try_set_count": partial(setting.try_set_count, 1),
        "count_down": counting.count_down,
        "wait of an open one": waiting.wait,
    }
    times: dict[str, list[float]] = {call: [] for call in steps}
    for _ in range(_REPEAT):
        for call, step in steps.items():
            times[call].append(_time(step))
    return {call: statistics.median(each) for call, each in times.items()}


def _time_wake_up(setting: CountDownLatch, counting: CountDownLatch, waiting: CountDownLatch) -> dict[str, float]:
    """Return the microseconds from the start of the last count to the end of another thread's wait."""
    delays = []
    for _ in range(_REPEAT):
        setting.try_set_count(1)
        told: list[float] = []
        thread = threading.Thread(target=lambda told=told: (waiting.wait(), told.append(time.perf_counter())))
        thread.start()
        # Let it fall asleep, which can't be observed from here.
        time.sleep(0.01)
        begin = time.perf_counter()
        counting.count_down()
        thread.join()
        delays.append((told[0] - begin) * 1e6)
    return {"told": statistics.median(delays)}


def _time(step: Callable[[], object]) -> float:
    begin = time.perf_counter()
    step()
    return (time.perf_counter() - begin) * 1e6
