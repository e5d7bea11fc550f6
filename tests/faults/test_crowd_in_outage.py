"""A crowd that waits through an outage of all nodes is served soon after it, and held locks outlast it.

`REDSYNC_CROWD=10` makes the crowds ten times as large.
"""

import asyncio
import os
import threading
import time

import pytest

from redsync import AsyncClient
from tests.aio_support import until

TIMES = int(os.environ.get("REDSYNC_CROWD", "1"))
TASKS, THREADS = 1000 * TIMES, 200 * TIMES
HELD = 100
OUTAGE = 1.0
PATIENCE = 60.0
LEASE = 120.0


@pytest.fixture
def outage(request, nodes):
    """Return functions that begin and end an outage of all nodes, and True if the nodes forget."""

    def begin():
        for i in range(len(nodes)):
            getattr(nodes, request.param)(i)

    def end():
        for i in range(len(nodes)):
            if nodes.alive(i):
                nodes.resume(i)
            else:
                nodes.restart(i)

    return begin, end, request.param == "kill"


@pytest.mark.parametrize("outage", ["kill", pytest.param("pause", marks=pytest.mark.sweep)], indirect=True)
def test_tasks_are_served_soon_after_an_outage(nodes, outage):
    begin, end, forgets = outage
    served, lost = [], []

    async def work(client, number):
        async with client.get_lock(f"l{number}"):
            served.append(number)

    async def hold(client):
        held = [] if forgets else [client.get_lock(f"held{i}", on_lost=lost.append) for i in range(HELD)]
        for lock in held:
            await lock.acquire()
        begin()
        tasks = [asyncio.create_task(work(client, number)) for number in range(TASKS)]
        await asyncio.sleep(OUTAGE)
        assert not served
        end()
        back = time.monotonic()
        await until(lambda: len(served) == TASKS, PATIENCE)
        print(f"{TASKS} tasks were served within {time.monotonic() - back:.2f} s")
        await asyncio.gather(*tasks)
        for lock in held:
            await lock.release()

    async def main():
        async with AsyncClient(nodes.urls, restart_guard=0.0, lease=LEASE) as client:
            await hold(client)

    asyncio.run(main())
    assert not lost


@pytest.mark.parametrize("outage", [pytest.param("kill", marks=pytest.mark.sweep), "pause"], indirect=True)
def test_threads_are_served_soon_after_an_outage(make_client, outage, eventually):
    begin, end, forgets = outage
    served, lost = [], []
    client = make_client(lease=LEASE)

    def work(number):
        with client.get_lock(f"l{number}"):
            served.append(number)

    held = [] if forgets else [client.get_lock(f"held{i}", on_lost=lost.append) for i in range(HELD)]
    for lock in held:
        assert lock.acquire()
    client.get_lock("connected").acquire()
    begin()
    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    time.sleep(OUTAGE)
    assert not served
    end()
    back = time.monotonic()
    eventually(lambda: len(served) == THREADS, within=PATIENCE)
    print(f"{THREADS} threads were served within {time.monotonic() - back:.2f} s")
    for thread in threads:
        thread.join(PATIENCE)
    for lock in held:
        lock.release()
    assert not lost
