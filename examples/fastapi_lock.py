"""FastAPI: the client lives as long as the application; requests depend on locks and rate limiters.

Self-contained: it starts throwaway servers. To use your own, set REDSYNC_URLS and run
`uvicorn fastapi_lock:app`.
"""

import asyncio
import os
from typing import Annotated

import httpx
from fastapi import FastAPI

from redsync import AsyncClient, AsyncHold
from redsync.contrib.fastapi import Redsync
from redsync.testing import LocalNodes

BANK = 0.6
"""Seconds that the request to the bank takes."""

redsync = Redsync()  # the nodes come from REDSYNC_URLS
app = FastAPI(lifespan=redsync.lifespan)

OrderLock = Annotated[AsyncHold, redsync.lock("order:{number}", timeout=0.5)]


# With a plain {number}, a caller who writes +7 for 7 would get another lock: the name has the path's text.
@app.post("/orders/{number:int}/pay", dependencies=[redsync.limit("pay:{client}", 4, per=60)])
async def pay(number: int, hold: OrderLock) -> dict[str, str]:
    await asyncio.sleep(BANK)  # a loss of the lock cancels the request here
    hold.check()
    return {"paid": f"order {number}"}


# The rest is the demonstration.


async def main() -> None:
    with LocalNodes(3) as nodes:
        os.environ.update(REDSYNC_URLS=",".join(nodes.urls), REDSYNC_RESTART_GUARD="0", REDSYNC_LEASE="1.0")
        web = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop")
        async with redsync.lifespan(app), AsyncClient.from_env() as another_machine, web:
            print("free:", await tell(web, 1))

            async with another_machine.get_lock("order:1"):
                print("held by another machine:", await tell(web, 1))

            request = asyncio.create_task(tell(web, 2))
            lock = another_machine.get_lock("order:2")
            while not await lock.locked():  # noqa: ASYNC110  (another machine has no event)
                await asyncio.sleep(0.01)
            await lock.force_release()
            print("lock lost during the request:", await request)

            await tell(web, 3)
            print("too many:", await tell(web, 4))


async def tell(web: httpx.AsyncClient, number: int) -> str:
    reply = await web.post(f"/orders/{number}/pay")
    return f"{reply.status_code} {reply.text}"


if __name__ == "__main__":
    asyncio.run(main())
