"""Processes of both flavours that contend while nodes fail, or while masters are replaced."""

import random
import time
from collections import Counter
from pathlib import Path

from tests.chaos.counters import read_counters
from tests.chaos.held_intervals import holds_of
from tests.chaos.history import read
from tests.chaos.jobs import Job
from tests.chaos.judges import judge_exclusion
from tests.chaos.process_pool import ProcessPool

LEASE, PERMITS = 1.0, 3
NAMES = ["lock:0", "fenced_lock:1", "semaphore:2"]


def start(directory: Path, urls_of, names, *, clients, **changes) -> ProcessPool:
    """Return a pool with that many processes, all started; `urls_of` returns the URLs for a client."""

    def make_order(client, first, history):
        place = {"directory": str(directory), "history": str(history), "first": first}
        flavour = ["threads", "asyncio"][client % 2]
        return Job(urls=urls_of(client), names=names, flavour=flavour, lease=LEASE, warm=20.0, **place, **changes)

    pool = ProcessPool(directory, make_order)
    for client in range(clients):
        pool.start(client)
    return pool


def fight(directory, urls_of, seed, strike, times, *, clients) -> None:
    """Let `clients` processes work, and strike that often; check each promise.

    Args:
        directory: The directory of all records.
        urls_of: A function that returns the URLs for a client.
        seed: The seed of all choices.
        strike: A function that gets a source of random numbers, replaces a master, and returns how.
        times: The number of strikes.
        clients: The number of processes.
    """
    rng, done = random.Random(seed), []
    options = {"owners": 2, "seed": str(seed), "look": 0.005, "limit": PERMITS}
    with start(directory, urls_of, NAMES, clients=clients, **options) as pool:
        pool.await_all("ready")
        pool.go()
        for _ in range(times):
            pool.check()
            done.append(strike(rng))
        await_work(pool, lambda: is_enough(holds_by_life(pool), 2 * times))
        pool.finish()
    each = holds_by_life(pool)
    print(f"{[len(mine) for mine in each]} holds; {done}")
    holds = [hold for mine in each for hold in mine]
    assert judge_exclusion(holds, read_counters(directory, NAMES), PERMITS) == []


def await_work(pool, is_done) -> None:
    """Wait until the processes have done enough, however slow the machine is."""
    gives_up_at = time.monotonic() + 90.0
    while not is_done():
        pool.check()
        assert time.monotonic() < gives_up_at, "too little was done"
        time.sleep(0.2)


def holds_by_life(pool):
    return [holds_of(read(life.history), history=life.history.name) for life in pool.lives]


def is_enough(each, least):
    """Return whether each process has held something, and each name was held often."""
    counts = Counter(hold.name for mine in each for hold in mine)
    return all(each) and all(counts[name] > least for name in NAMES)
