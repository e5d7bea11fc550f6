"""FastAPI: the client lives as long as the application; locks and rate limiters are dependencies.

```python
from typing import Annotated

from fastapi import FastAPI
from redsync import AsyncHold
from redsync.contrib.fastapi import Redsync

redsync = Redsync()  # nodes and settings: REDSYNC_URLS and so on
app = FastAPI(lifespan=redsync.lifespan)


@app.post("/orders/{number}/pay", dependencies=[redsync.limit("pay:{client}", 10, per=60)])
async def pay(number: int, hold: Annotated[AsyncHold, redsync.lock("order:{number}")]): ...
```

The lock is released before the reply is sent (`scope="function"`): a slow reader does not hold it, and a loss that the
release finds can still be told.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

try:
    from fastapi import Depends, HTTPException, Request, Response
except ImportError as error:  # pragma: no cover
    raise ImportError("redsync.contrib.fastapi needs `pip install redsync-toolkit[fastapi]`") from error

from redsync import AcquireTimeout, AsyncClient, AsyncHold, LeaseLostError, QuorumError
from redsync.contrib.http import BUSY, LIMITED, UNAVAILABLE, Policy
from redsync.contrib.names import NameTemplate

__all__ = ["Redsync"]


class Redsync:
    """The client of an application, and the dependencies that use it.

    Args:
        urls: The nodes; empty: those of `REDSYNC_URLS`. Other settings come from where `AsyncClient.from_env` has them.
        **options: Options of `AsyncClient`.
    """

    def __init__(self, urls: Sequence[str] = (), **options: Any) -> None:
        self._urls: Final = urls
        self._options: Final = options
        self._client: AsyncClient | None = None

    @property
    def client(self) -> AsyncClient:
        """The client, while the application runs.

        Raises:
            RuntimeError: The application's lifespan has not begun, or is over.
        """
        if self._client is None:
            raise RuntimeError("there is no client yet: give the application `lifespan=redsync.lifespan`")
        return self._client

    @asynccontextmanager
    async def lifespan(self, _: Any = None) -> AsyncIterator[None]:
        """Open the client in the event loop that serves the requests, and close it at the end.

        Within a lifespan of your own: `async with redsync.lifespan(app): ...`. Bad settings raise here, so the
        application does not start.

        Raises:
            RuntimeError: Another lifespan of this object has not ended.
        """
        if self._client is not None:
            raise RuntimeError("the lifespan of this object has begun already: make a `Redsync` for each application")
        async with AsyncClient.from_env(self._urls, **self._options) as client:
            self._client = client
            try:
                yield
            finally:
                self._client = None

    def lock(self, name: str, *, timeout: float = 0.5, busy: int = 423, **options: Any) -> Any:
        """Return a dependency that holds a lock while the path operation runs; its value is the `AsyncHold`.

        While others hold it longer than `timeout`, the reply is `busy`. It is 503 when too few nodes answer, or when
        the lock was lost; on a loss an `async def` function is cancelled at its next `await`.

        Args:
            name: The lock's name; `{number}` in it stands for the path parameter, `{client}` for the client's address.
            timeout: For how many seconds to wait.
            busy: The status when others hold it: 423 (Locked), or 409 (Conflict).
            **options: Options of `AsyncClient.get_lock`.

        Raises:
            TypeError: `name` is no string.
            ValueError: `name` is no template, `timeout` is negative, or `busy` is no status of an error.
        """
        template = NameTemplate(name)
        if not timeout >= 0:
            raise ValueError(f"timeout is a number of seconds from 0 on, not {timeout!r}")
        if busy not in range(400, 600):
            raise ValueError(f"busy is the status of an error, such as 423 or 409, not {busy!r}")

        async def held(request: Request) -> AsyncIterator[AsyncHold]:
            lock = self.client.get_lock(_filled(template, request), timeout=timeout, **options)
            try:
                async with AsyncExitStack() as stack:
                    try:
                        hold = await stack.enter_async_context(lock)
                    except AcquireTimeout:
                        raise HTTPException(busy, BUSY, {"Retry-After": "1"}) from None
                    except QuorumError as error:
                        raise HTTPException(503, UNAVAILABLE) from error
                    yield hold
            except LeaseLostError as error:
                if error.name != lock.name:
                    raise  # That of another lock is the path operation's own trouble.
                raise HTTPException(503, UNAVAILABLE) from error

        return Depends(held, scope="function")

    def limit(self, name: str, rate: int, *, per: float) -> Any:
        """Return a dependency that admits so many requests, else replies 429 with `Retry-After` and `RateLimit`.

        Every reply of the path operation has `RateLimit-Policy`. When too few nodes answer, the reply is 503.

        Args:
            name: The limiter's name; `{client}` in it stands for the client's address, `{number}` for a path parameter.
            rate: How many are allowed.
            per: In how many seconds.

        Raises:
            TypeError: `name` is no string.
            ValueError: `name` is no template.
        """
        template, policy = NameTemplate(name), Policy(name, rate, per)

        async def admitted(request: Request, response: Response) -> None:
            limiter = self.client.get_rate_limiter(_filled(template, request), rate, per)
            response.headers.update(policy.fields)
            try:
                if await limiter.acquire(blocking=False):
                    return
                retry_after = await limiter.retry_after()
            except QuorumError as error:
                raise HTTPException(503, UNAVAILABLE, policy.fields) from error
            raise HTTPException(429, LIMITED, policy.refusal(retry_after))

        return Depends(admitted, scope="function")


def _filled(template: NameTemplate, request: Request) -> str:
    client = request.client.host if request.client else "unknown"
    return template.fill({"client": client, **request.path_params})
