"""Hundreds of readers that wait are admitted together."""

import asyncio

from redsync import AsyncClient
from redsync._core.keys import LockKeys
from tests.aio_support import until

KEYS = LockKeys.of(b"redsync:", b"x")


def test_hundreds_of_waiting_readers_are_all_admitted_together(nodes, raw, eventually):
    count = 300

    async def crowd():
        async with AsyncClient(nodes.urls, restart_guard=0.0) as client:
            lock = client.get_read_write_lock("x")
            inside, all_inside = 0, asyncio.Event()

            async def read():
                nonlocal inside
                async with lock.read_lock:
                    inside += 1
                    if inside == count:
                        all_inside.set()
                    await all_inside.wait()

            async with asyncio.timeout(60):
                async with lock.write_lock:
                    tasks = [asyncio.create_task(read()) for _ in range(count)]
                    # Places expire and are renewed all the time.
                    await until(lambda: raw[0].zcard(KEYS.queue) >= 0.9 * count, 30)
                await asyncio.gather(*tasks)

    asyncio.run(crowd())
    eventually(lambda: raw.keys() == [set()] * 5)
