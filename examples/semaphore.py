"""A semaphore: whatever the number of workers and machines, no more than three downloads at a time.

Twelve threads of two clients, which could as well be processes on two machines, want to download.
"""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

from redsync import Client
from redsync.testing import LocalNodes

AT_ONCE = 3


class Mirror:
    """What is downloaded from: it counts who is there."""

    def __init__(self) -> None:
        self._counting = threading.Lock()
        self._now = 0
        self.most = 0

    def download(self, number: int) -> int:
        with self._counting:
            self._now += 1
            self.most = max(self.most, self._now)
        time.sleep(0.05)
        with self._counting:
            self._now -= 1
        return number


def download(client: Client, mirror: Mirror, number: int) -> int:
    with client.get_semaphore("mirror", AT_ONCE):  # waits its turn: first come, first served
        return mirror.download(number)


def main() -> None:
    mirror = Mirror()
    with LocalNodes(5) as nodes, nodes.client() as here, nodes.client() as there, ThreadPoolExecutor(12) as pool:
        downloads = [pool.submit(download, (here, there)[i % 2], mirror, i) for i in range(12)]
        print("downloaded:", *sorted(each.result() for each in downloads))
        print(f"{mirror.most} at a time")

        semaphore = here.get_semaphore("mirror", AT_ONCE)
        with semaphore.acquire(n=2):  # a big one counts twice, all or none
            print("free beside the big one:", semaphore.available())
            print("two more:", there.get_semaphore("mirror", AT_ONCE).acquire(False, n=2))
        print("free again:", semaphore.available())


if __name__ == "__main__":
    main()
