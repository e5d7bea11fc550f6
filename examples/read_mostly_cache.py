"""A cache that many read and few fill: readers go side by side, and of many who miss the same entry one computes it.

`Cache` looks twice: under the read lock, and again when it has the write lock, for somebody else may have filled the
entry while it waited. So a stampede of readers costs one computation. It then goes on reading what it wrote, without
letting another writer in between.

Runs by itself, on throwaway servers. A dict stands for what your processes share: a file, a table, a directory.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from redsync import Client
from redsync.testing import LocalNodes


class Cache:
    def __init__(self, client: Client, name: str, entries: dict[str, Any]) -> None:
        self._lock = client.get_read_write_lock(name)
        self._entries = entries

    @contextmanager
    def reading(self, key: str, compute: Callable[[], Any]) -> Iterator[Any]:
        """Give the entry, computed if it is missing; nobody changes any entry in the body."""
        with self._lock.read_lock:
            if key in self._entries:
                yield self._entries[key]
                return
        # A reader can't become a writer: two of them would wait for each other. So: give it back, and look again.
        with self._lock.write_lock:
            if key not in self._entries:
                self._entries[key] = compute()
            self._lock.read_lock.acquire()
        try:
            yield self._entries[key]
        finally:
            self._lock.read_lock.release()

    def update(self, **entries: Any) -> None:
        """Change several entries: readers see all of the changes, or none."""
        with self._lock.write_lock:
            for key, value in entries.items():
                self._entries[key] = value
                time.sleep(0.01)


def main() -> None:
    computed = []

    def compute() -> str:
        computed.append(threading.current_thread().name)
        time.sleep(0.2)
        return "a report"

    with LocalNodes(3) as nodes, nodes.client() as client:
        entries: dict[str, Any] = {}
        cache = Cache(client, "cache", entries)

        def miss() -> None:
            with cache.reading("report", compute) as report:
                assert report == "a report"

        crowd = [threading.Thread(target=miss) for _ in range(20)]
        for reader in crowd:
            reader.start()
        for reader in crowd:
            reader.join()
        print(f"20 readers missed it, {len(computed)} computed it")

        cache.update(price=10, tax=2)
        over, torn = threading.Event(), []

        def watch() -> None:
            while not over.is_set():
                with cache.reading("price", compute) as price:
                    time.sleep(0.002)
                    if entries["tax"] * 5 != price:
                        torn.append(price)

        readers = [threading.Thread(target=watch) for _ in range(4)]
        for reader in readers:
            reader.start()
        for price in range(20, 60, 10):
            cache.update(price=price, tax=price // 5)
        over.set()
        for reader in readers:
            reader.join()
        print(f"4 updates between the reads of 4 readers, {len(torn)} of them seen half done")


if __name__ == "__main__":
    main()
