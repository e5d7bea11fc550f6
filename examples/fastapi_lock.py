"""FastAPI: the client lives as long as the application, and a dependency holds the lock while a request is at work.

Runs by itself, on throwaway servers. With your own, set REDSYNC_URLS and run `uvicorn fastapi_lock:app`.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import httpx
from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse

from redsync import AcquireTimeout, AsyncClient, AsyncHold, LeaseLostError, QuorumError
from redsync.testing import LocalNodes

BANK = 0.6
"""How many seconds it takes."""


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with AsyncClient.from_env() as client:  # in the event loop that serves the requests
        app.state.locks = client
        yield


app = FastAPI(lifespan=lifespan)


async def order_lock(number: int, request: Request) -> AsyncIterator[AsyncHold]:
    async with request.app.state.locks.get_lock(f"order:{number}", timeout=0.5) as hold:
        yield hold


# scope: the lock is released before the reply is sent, so that its loss can still be told.
OrderLock = Annotated[AsyncHold, Depends(order_lock, scope="function")]


@app.exception_handler(AcquireTimeout)
async def busy(request: Request, error: AcquireTimeout) -> JSONResponse:
    return JSONResponse({"detail": "somebody else is at it"}, status_code=423, headers={"Retry-After": "1"})


@app.exception_handler(QuorumError)
@app.exception_handler(LeaseLostError)
async def unavailable(request: Request, error: QuorumError | LeaseLostError) -> JSONResponse:
    return JSONResponse({"detail": "the lock service is out of reach"}, status_code=503)


@app.post("/orders/{number}/pay")
async def pay(number: int, hold: OrderLock) -> dict[str, str]:
    await asyncio.sleep(BANK)  # ends here when the lock is lost
    hold.check()
    return {"paid": f"order {number}"}


# The rest is the demonstration.


async def main() -> None:
    with LocalNodes(3) as nodes:
        os.environ.update(REDSYNC_URLS=",".join(nodes.urls), REDSYNC_RESTART_GUARD="0", REDSYNC_LEASE="1.0")
        web = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop")
        async with lifespan(app), AsyncClient.from_env() as another_machine, web:
            print("free:", await tell(web, 1))

            async with another_machine.get_lock("order:1"):
                print("held by another machine:", await tell(web, 1))

            request = asyncio.create_task(tell(web, 2))
            lock = another_machine.get_lock("order:2")
            while not await lock.locked():  # noqa: ASYNC110  (an event would not be another machine's)
                await asyncio.sleep(0.01)
            await lock.force_release()
            print("lost on the way:", await request)


async def tell(web: httpx.AsyncClient, number: int) -> str:
    reply = await web.post(f"/orders/{number}/pay")
    return f"{reply.status_code} {reply.text}"


if __name__ == "__main__":
    asyncio.run(main())
