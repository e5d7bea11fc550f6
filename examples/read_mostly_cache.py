"""A cache with many reads and few writes: readers run in parallel; one of those that miss fills the entry.

`Cache` looks twice: under the read lock, and again under the write lock, because another reader may have
filled the entry meanwhile. So a stampede of readers costs one computation. The writer then continues as a
reader, and no other writer gets in between.

Self-contained: it starts throwaway servers. A dict stands for data that your processes share: a file, a
table, a directory.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from redsync import Client
from redsync.testing import LocalNodes


class Cache:
    def __init__(self, client: Client, name: str, entries: dict[str, Any]) -> None:
        self._lock = client.get_read_write_lock(name)
        self._entries = entries

    @contextmanager
    def reading(self, key: str, compute: Callable[[], Any]) -> Iterator[Any]:
        """Yield the entry, computed if it is missing; no entry changes while the body runs."""
        with self._lock.read_lock:
            if key in self._entries:
                yield self._entries[key]
                return
        # A reader can't become a writer, as two would wait for each other. So release, and look again.
        with ExitStack() as stack:
            with self._lock.write_lock as hold:
                if key not in self._entries:
                    entry = compute()
                    hold.check()  # else another writer may have changed it since
                    self._entries[key] = entry
                stack.enter_context(self._lock.read_lock)
            yield self._entries[key]

    def update(self, **entries: Any) -> None:
        """Change several entries: readers see all changes or none."""
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
        print(f"4 updates between the reads of 4 readers, {len(torn)} of them seen incomplete")


if __name__ == "__main__":
    main()
