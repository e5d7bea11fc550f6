"""asyncio: tasks take turns, one is cancelled while it waits, and one loses its lock while it works."""

import asyncio

from redsync import AsyncClient, AsyncLock, LeaseLostError
from redsync.testing import LocalNodes


async def work(name: str, lock: AsyncLock) -> None:
    async with lock:
        print(f"{name} works")
        await asyncio.sleep(0.05)
        # Print inside the block: after the release the next task may run before this one continues.
        print(f"{name} is done")


async def work_for_long(lock: AsyncLock) -> None:
    try:
        async with lock:
            print("Dan works for an hour")
            await asyncio.sleep(3600)
    except LeaseLostError:
        print("Dan was stopped because the lock was lost")


async def main() -> None:
    with LocalNodes(5) as nodes:
        # No lock can be held on fresh servers, so no restart guard is needed.
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
            print("an operator force-releases the lock:", await lock.force_release())
            await dan


if __name__ == "__main__":
    asyncio.run(main())
