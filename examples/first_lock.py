"""A first lock: two workers want the same job, and one at a time does it.

Self-contained: it starts throwaway servers. To use your own, write instead:

    client = Client(["redis://redis-1:6379", "redis://redis-2:6379", "redis://redis-3:6379"])
"""

import threading
import time

from redsync import AcquireTimeout, Client
from redsync.testing import LocalNodes


def work(client: Client, worker: str, begun: threading.Event) -> None:
    with client.get_lock("report:2026") as hold:
        print(f"{worker} writes the report; the lock is valid for {hold.remaining():.0f} s and is renewed")
        begun.set()
        time.sleep(0.5)
        print(f"{worker} is done")


def main() -> None:
    with LocalNodes(3) as nodes, nodes.client() as client:
        workers = [
            threading.Thread(target=work, args=(client, name, threading.Event())) for name in ("Ada", "Bob")
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

        # Try without waiting.
        lock = client.get_lock("report:2026", timeout=0.2)
        begun = threading.Event()
        eve = threading.Thread(target=work, args=(client, "Eve", begun))
        eve.start()
        begun.wait()
        if not lock.acquire(blocking=False):
            print("busy: doing something else meanwhile")
        eve.join()
        try:
            with lock:
                print("free again")
        except AcquireTimeout as error:
            print(error)


if __name__ == "__main__":
    main()
