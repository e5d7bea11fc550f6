"""dogpile.cache: of all processes that miss an entry, one computes it; others wait, or use the old value.

Self-contained: it starts throwaway servers, three for the locks and one for the cache.
"""

import logging
import threading
from concurrent.futures import ThreadPoolExecutor

from dogpile.cache import CacheRegion, make_region

from redsync import Client
from redsync.contrib.dogpile import RedsyncProxy
from redsync.testing import LocalNodes


def make_cache(url: str, client: Client) -> CacheRegion:
    return make_region().configure(
        "dogpile.cache.redis", arguments={"url": url}, wrap=[RedsyncProxy(client)]
    )


# The rest is the demonstration. Two clients stand for two machines.


def main() -> None:
    with LocalNodes(3) as nodes, LocalNodes(1) as store, nodes.client() as one, nodes.client() as two:
        caches = [make_cache(store.urls[0], client) for client in (one, two)]
        computed: list[str] = []
        begun, go_on = threading.Event(), threading.Event()
        readers = threading.Barrier(8)

        def compute() -> str:
            computed.append("report")
            begun.set()
            go_on.wait()
            return f"report number {len(computed)}"

        def read_at_once(number: int) -> str:
            readers.wait()
            return caches[number % 2].get_or_create("report", compute)

        with ThreadPoolExecutor(8) as pool:
            answers = pool.map(read_at_once, range(8))
            while len(one.inspect("dogpile:report").waiters) < 7:
                begun.wait()
            go_on.set()
            print(f"8 readers have {set(answers)}, computed {len(computed)} time")

            begun.clear()
            go_on.clear()
            renewed = pool.submit(caches[0].get_or_create, "report", compute, expiration_time=0)
            begun.wait()
            print(
                "while one reader computes:", caches[1].get_or_create("report", compute, expiration_time=0)
            )
            go_on.set()
            print("then:", renewed.result())

        logging.getLogger("redsync.node").setLevel(logging.ERROR)  # we know which nodes are down
        for node in (0, 1):
            nodes.kill(node)
        print("without a quorum of nodes:", caches[0].get_or_create("invoice", lambda: "an invoice anyway"))

        for cache in caches:
            cache.actual_backend.reader_client.connection_pool.disconnect()


if __name__ == "__main__":
    main()
