"""Processes that count down a latch and wait for it while its nodes fail.

One of them is `python -m tests.faults.latch_worker`, started by a crew. It notes that it is `ready`, and then reads
what to do, line by line:

* `wait`: begin to wait, once for long, and beside that again and again shortly, with objects that know nothing. It
  notes when it is `told` that the latch is open.
* `count`: count 1 down; it notes that it is `counting`, and that it has `counted`.
* `join`: it notes `woken` when it waits no longer.
* `finish`: end.
"""

import contextlib
import random
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from redsync import Client, QuorumError
from redsync.testing.harness.journal import Journal
from redsync.testing.harness.orders import Order
from tests.bridge import Bridge

NAME = "counted"


class Worker:
    """What one process does."""

    def __init__(self, client, journal: Journal, chance: random.Random):
        self._client = client
        self._latch = client.get_count_down_latch(NAME)
        self._journal = journal
        self._chance = chance

    def count(self):
        self._journal.note("counting")
        self._latch.count_down()
        self._journal.note("counted")

    def wait_long(self):
        assert self._latch.wait(15)
        self._journal.note("told", by="one long wait")

    def wait_shortly(self):
        while not self._is_open():
            pass
        self._journal.note("told", by="short waits")

    def _is_open(self) -> bool:
        latch = self._client.get_count_down_latch(NAME)
        try:
            return latch.wait(self._chance.uniform(0.05, 0.5)) if self._chance.random() < 0.7 else not latch.count()
        except QuorumError:
            return False


def follow(worker: Worker, journal: Journal, pool: ThreadPoolExecutor):
    waiting = []

    def join():
        while waiting:
            waiting.pop().result(20)
        journal.note("woken")

    def wait():
        waiting.extend(pool.submit(each) for each in (worker.wait_long, worker.wait_shortly))

    orders: dict[str, Callable[[], None]] = {"wait": wait, "count": worker.count, "join": join}
    for line in sys.stdin:
        if line == "finish\n":
            return
        orders[line.strip()]()


@contextlib.contextmanager
def connected(order: Order):
    """Make the client, of either flavour, and close it in the end."""
    if order.flavour == "threads":
        with Client(order.urls, lease=order.lease) as client:
            yield client
        return
    bridge = Bridge()
    with contextlib.closing(bridge.connect(order.urls, lease=order.lease)) as client:
        yield client
    bridge.end()


def main():
    order = Order.of(sys.stdin.readline())
    journal = Journal(Path(order.journal))
    signal.alarm(90)  # Should the test be killed, nobody stays for ever.
    with connected(order) as client, ThreadPoolExecutor(2) as pool:
        worker = Worker(client, journal, random.Random(f"{order.seed} {order.first}"))
        journal.note("ready")
        follow(worker, journal, pool)


if __name__ == "__main__":
    main()
