"""Many waiters for one name: threads of several processes, and tasks of one loop.

Six hundred of them next to other tests; `REDSYNC_MANY_WAITERS=2000` makes it two thousand, which need a machine of two
cores for themselves.
"""

import asyncio
import os
import sys
import textwrap
from asyncio.subprocess import PIPE

import pytest

from redsync import AsyncClient
from redsync._core.crowds import FRONT
from tests.aio_support import until

WAITERS = int(os.environ.get("REDSYNC_MANY_WAITERS", "600"))
PROCESSES = 4
TASKS, THREADS = WAITERS // 2, WAITERS // 2 // PROCESSES
IN_FRONT = min(TASKS, 2 * FRONT) + PROCESSES * min(THREADS, 2 * FRONT)
"""At most that many per client have places on the nodes; a fair lock has no such bound."""

PROGRAM = """
    import sys, threading
    from redsync import Client

    kind, threads, *urls = sys.argv[1:]
    client = Client(urls, restart_guard=0.0)
    served = []

    def work():
        lock = client.get_fair_lock("x") if kind == "fair" else client.get_lock("x")
        with lock:
            served.append(lock.hold_count())

    threading.stack_size(256 * 1024)
    workers = [threading.Thread(target=work) for _ in range(int(threads))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    client.close()
    print(len(served), set(served))
"""


def subscriptions(raw):
    return [len(node.pubsub_channels("redsync:wake:*")) for node in raw]


@pytest.mark.sweep
@pytest.mark.timeout(240)
@pytest.mark.parametrize("kind", ["lock", "fair"])
def test_many_waiters_are_all_served_and_leave_nothing(nodes, raw, kind, eventually):
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), kind, str(THREADS), *nodes.urls]
    served = []

    def queued():
        return raw[0].zcard("redsync_queue:{redsync:x}")

    async def wait_with_tasks():
        async with AsyncClient(nodes.urls, restart_guard=0.0) as client:
            lock = client.get_fair_lock("x") if kind == "fair" else client.get_lock("x")

            async def work(number):
                async with lock:
                    served.append(number)

            processes = []
            try:
                async with lock:
                    tasks = [asyncio.create_task(work(number)) for number in range(TASKS)]
                    while len(processes) < PROCESSES:
                        processes.append(await asyncio.create_subprocess_exec(*command, stdout=PIPE))
                    # Places expire and are renewed all the time.
                    await until(lambda: queued() >= (WAITERS if kind == "fair" else IN_FRONT) * 0.95, 60)
                    channels = subscriptions(raw)
                async with asyncio.timeout(60):
                    await asyncio.gather(*tasks)
                    return channels, [(await process.communicate())[0].decode() for process in processes]
            finally:
                for process in processes:
                    if process.returncode is None:
                        process.kill()
                        await process.wait()

    channels, outputs = asyncio.run(wait_with_tasks())
    assert sorted(served) == list(range(TASKS))
    assert outputs == [f"{THREADS} {{1}}\n"] * PROCESSES
    assert max(channels) <= 1 + PROCESSES, "one channel per client, however many wait"
    eventually(lambda: raw.keys() == [set()] * 5)
