"""Nodes fail and come back: a failed minority does no harm, a failed majority stops grants for a while."""

import logging
import time

from redsync import Client, QuorumError
from redsync.testing import LocalNodes


def show(client: Client) -> None:
    print("nodes:", ", ".join(status.state for status in client.nodes()))


def await_state(client: Client, state: str, count: int) -> None:
    while [status.state for status in client.nodes()].count(state) != count:
        time.sleep(0.01)


def main() -> None:
    logging.getLogger("redsync.node").setLevel(logging.ERROR)  # this example prints the states itself
    with LocalNodes(5) as nodes, nodes.client(lease=2.0) as client:
        lock = client.get_lock("job")

        with lock as hold:
            nodes.kill(0)
            nodes.kill(1)
            await_state(client, "down", 2)
            show(client)
            hold.extend()
            print("two of five are dead: the lock is held and can be extended")

            for i in (0, 1):
                nodes.restart(i)
            await_state(client, "up", 5)
            print("they are back, empty: the watchdog writes the claim there again")
            hold.check()

        for i in (0, 1, 2):
            nodes.kill(i)
        try:
            lock.acquire(timeout=0.5)
        except QuorumError as error:
            print("three of five are dead:", error.sentence)

        nodes.restart(0)
        print("one is back: the same client acquires the lock:", lock.acquire(timeout=10))
        lock.release()


if __name__ == "__main__":
    main()
