"""asyncio: tasks take turns, one is cancelled while it waits, and one loses its lock in the middle of its work."""

import asyncio

from redsync import AsyncClient, AsyncLock, LeaseLostError
from redsync.testing import LocalNodes


async def work(name: str, lock: AsyncLock) -> None:
    async with lock:
        print(f"{name} works")
        await asyncio.sleep(0.05)
        # Inside: the release hands the lock over at once, and the next may begin before it has returned here.
        print(f"{name} is done")


async def work_for_long(lock: AsyncLock) -> None:
    try:
        async with lock:
            print("Dan works for an hour")
            await asyncio.sleep(3600)
    except LeaseLostError:
        print("Dan was stopped, for the lock was lost")


async def main() -> None:
    with LocalNodes(5) as nodes:
        # With fresh servers of our own we know that nobody holds anything, so there is nothing to guard against.
        async with AsyncClient(nodes.urls, lease=1.0, restart_guard=0) as client:
            lock = client.get_lock("report")
            ada = asyncio.create_task(work("Ada", lock))
            await asyncio.sleep(0.02)
            bob, eve = (asyncio.create_task(work(name, lock)) for name in ("Bob", "Eve"))
            await asyncio.sleep(0.01)
            eve.cancel()
            await asyncio.wait([ada, bob, eve])
            print("Eve was cancelled:", eve.cancelled())

            dan = asyncio.create_task(work_for_long(lock))
            await asyncio.sleep(0.2)
            print("an operator takes the lock away:", await lock.force_release())
            await dan


if __name__ == "__main__":
    asyncio.run(main())
