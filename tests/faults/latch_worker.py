"""Processes that count down a latch and wait for it while its nodes fail.

One of them is `python -m tests.faults.latch_worker SETTINGS`. It says "ready", and then reads what to do, line by line:

* `wait`: begin to wait, once for long, and beside that again and again shortly, with objects that know nothing.
* `count`: count 1 down; says "counted" when that has worked.
* `join`: says "woken" when it waits no longer.

It notes when it began to count, and when it was told that the latch is open.
"""

import json
import random
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from redsync import QuorumError
from tests.faults.hammer import connected
from tests.faults.havoc import clock
from tests.soak.journal import Journal

NAME = "counted"


class Worker:
    """What one process does."""

    def __init__(self, client, journal: Journal, chance: random.Random):
        self._client = client
        self._latch = client.get_count_down_latch(NAME)
        self._journal = journal
        self._chance = chance

    def count(self):
        self._journal.note("counting", since=clock())
        self._latch.count_down()

    def wait_long(self):
        assert self._latch.wait(15)
        self._journal.note("told", since=clock(), by="one long wait")

    def wait_shortly(self):
        while not self._is_open():
            pass
        self._journal.note("told", since=clock(), by="short waits")

    def _is_open(self) -> bool:
        latch = self._client.get_count_down_latch(NAME)
        try:
            return latch.wait(self._chance.uniform(0.05, 0.5)) if self._chance.random() < 0.7 else not latch.count()
        except QuorumError:
            return False


def follow(worker: Worker, pool: ThreadPoolExecutor):
    waiting = []

    def join():
        while waiting:
            waiting.pop().result(20)
        print("woken", flush=True)

    def count():
        worker.count()
        print("counted", flush=True)

    def wait():
        waiting.extend(pool.submit(each) for each in (worker.wait_long, worker.wait_shortly))

    orders: dict[str, Callable[[], None]] = {"wait": wait, "count": count, "join": join}
    for line in sys.stdin:
        orders[line.strip()]()


def main():
    settings = json.loads(sys.argv[1])
    signal.alarm(90)  # Should the test be killed, nobody stays for ever.
    with connected(settings) as client, ThreadPoolExecutor(2) as pool:
        worker = Worker(client, Journal(Path(settings["journal"])), random.Random(settings["seed"]))
        print("ready", flush=True)
        follow(worker, pool)


if __name__ == "__main__":
    main()
