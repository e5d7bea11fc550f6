"""One process of `bench.sizes`: `crowd CLIENTS NUMBER URLS`. Opens clients, reports their cost, and runs orders.

An order is a line with two instants of the machine's monotonic clock, and the number of pairs that each client makes
between them, spread evenly. The answer is the CPU time in seconds that the process used meanwhile.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import ExitStack
from typing import TypedDict

from bench.measure import resident
from redsync import Client


class Opened(TypedDict):
    """The cost of all clients: seconds to open each and use it once, and bytes of memory."""

    seconds: float
    memory: int


def main() -> None:
    """Open the clients, then run orders until there are no more."""
    count, number, urls = int(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
    with ExitStack() as stack:
        # The first client loads modules, which the others share.
        with Client(urls, restart_guard=0.0) as first, first.get_lock(f"crowd:{number}"):
            pass
        memory, begin = resident(), time.perf_counter()
        clients = [stack.enter_context(Client(urls, restart_guard=0.0)) for _ in range(count)]
        locks = [client.get_lock(f"crowd:{number}:{i}") for i, client in enumerate(clients)]
        for lock in locks:
            with lock:
                pass
        opened = Opened(seconds=time.perf_counter() - begin, memory=resident() - memory)
        print(json.dumps(opened), flush=True)
        for line in sys.stdin:
            start, end, pairs = map(float, line.split())
            total = int(pairs) * count
            time.sleep(max(start - time.monotonic(), 0))
            cpu = time.process_time()
            for i in range(total):
                with locks[i % count]:
                    pass
                time.sleep(max(start + (i + 1) * (end - start) / total - time.monotonic(), 0))
            time.sleep(max(end - time.monotonic(), 0))
            print(time.process_time() - cpu, flush=True)


if __name__ == "__main__":
    main()
