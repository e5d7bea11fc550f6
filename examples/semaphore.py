"""A semaphore: at most three downloads at a time, over all workers and machines.

Twelve threads of two clients want to download; they could also be processes on two machines.
"""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

from redsync import Client
from redsync.testing import LocalNodes

AT_ONCE = 3


class Mirror:
    """The server of the downloads: it counts those under way."""

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
    with client.get_semaphore("mirror", AT_ONCE):  # waits for a permit: first come, first served
        return mirror.download(number)


def main() -> None:
    mirror = Mirror()
    with (
        LocalNodes(5) as nodes,
        nodes.client() as here,
        nodes.client() as there,
        ThreadPoolExecutor(12) as pool,
    ):
        downloads = [pool.submit(download, (here, there)[i % 2], mirror, i) for i in range(12)]
        print("downloaded:", *sorted(each.result() for each in downloads))
        print(f"{mirror.most} at a time")

        semaphore = here.get_semaphore("mirror", AT_ONCE)
        with semaphore.acquire(n=2):  # a big download takes two permits, or none
            print("free next to the big one:", semaphore.available())
            print("two more:", there.get_semaphore("mirror", AT_ONCE).acquire(False, n=2))
        print("free again:", semaphore.available())


if __name__ == "__main__":
    main()
