"""FastAPI: a client that lives as long as the application; locks and rate limiters as dependencies.

```python
from typing import Annotated

from fastapi import FastAPI
from redsync import AsyncHold
from redsync.contrib.fastapi import Redsync

redsync = Redsync()  # nodes and settings come from REDSYNC_URLS and so on
app = FastAPI(lifespan=redsync.lifespan)


@app.post("/orders/{number}/pay", dependencies=[redsync.limit("pay:{client}", 10, per=60)])
async def pay(number: int, hold: Annotated[AsyncHold, redsync.lock("order:{number}")]): ...
```

The lock is released before the reply is sent (`scope="function"`): a slow reader does not prolong the hold, and the
reply can still report a loss that the release finds.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

try:
    from fastapi import Depends, HTTPException, Request, Response
except ImportError as error:  # pragma: no cover
    raise ImportError("redsync.contrib.fastapi needs `pip install redsync-toolkit[fastapi]`") from error

from redsync import AcquireTimeout, AsyncClient, AsyncHold, LeaseLostError, QuorumError
from redsync.contrib.shared import Guard, NameTemplate, Policy, unavailable

__all__ = ["Redsync"]


class Redsync:
    """The client of an application, and the dependencies that use it.

    Args:
        urls: The nodes' URLs; if empty, those of `REDSYNC_URLS`. For other defaults, see `AsyncClient.from_env`.
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
            RuntimeError: The application's lifespan has not begun, or has ended.
        """
        if self._client is None:
            raise RuntimeError("there is no client: pass `lifespan=redsync.lifespan` to the application")
        return self._client

    @asynccontextmanager
    async def lifespan(self, _: Any = None) -> AsyncIterator[None]:
        """Open the client in the event loop that serves the requests, and close it at the end.

        Within your own lifespan: `async with redsync.lifespan(app): ...`. Bad settings raise here, so the application
        does not start.

        Raises:
            RuntimeError: Another lifespan of this object has not ended.
        """
        if self._client is not None:
            raise RuntimeError("this object's lifespan has already begun: create a `Redsync` for each application")
        async with AsyncClient.from_env(self._urls, **self._options) as client:
            self._client = client
            try:
                yield
            finally:
                self._client = None

    def lock(self, name: str, *, timeout: float = 0.5, busy: int = 423, **options: Any) -> Any:
        """Return a dependency that holds a lock while the path operation runs; its value is the `AsyncHold`.

        The reply is `busy` if others hold the lock longer than `timeout`, and 503 if too few nodes answer or the lock
        is lost. On a loss, an `async def` function is cancelled at its next `await`.

        Args:
            name: The lock's name; `{number}` in it stands for the path parameter, `{client}` for the client's address.
            timeout: Seconds to wait.
            busy: The status if others hold the lock: 423 (Locked), or 409 (Conflict).
            **options: Options of `AsyncClient.get_lock`.

        Raises:
            TypeError: `name` is not a string.
            ValueError: `name` is not a template, `timeout` is negative, or `busy` is not an error status.
        """
        guard = Guard(name, timeout=timeout, busy=busy, **options)

        async def held(request: Request) -> AsyncIterator[AsyncHold]:
            lock = self.client.get_lock(_filled(guard.name, request), **guard.options)
            try:
                async with lock as hold:
                    yield hold
            except (AcquireTimeout, QuorumError, LeaseLostError) as error:
                raise HTTPException(*guard.refusal(error, lock.name)) from error

        return Depends(held, scope="function")

    def limit(self, name: str, rate: int, *, per: float) -> Any:
        """Return a dependency that limits the rate of requests; beyond it, it replies 429.

        Every reply of the path operation has `RateLimit-Policy`; a 429 also has `Retry-After` and `RateLimit`. If too
        few nodes answer, the reply is 503.

        Args:
            name: The limiter's name; `{client}` in it stands for the client's address, `{number}` for a path parameter.
            rate: The number of requests allowed in `per` seconds.
            per: The window in seconds.

        Raises:
            TypeError: `name` is not a string.
            ValueError: `name` is not a template.
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
                raise HTTPException(*unavailable(policy.fields)) from error
            raise HTTPException(*policy.refusal(retry_after))

        return Depends(admitted, scope="function")


def _filled(template: NameTemplate, request: Request) -> str:
    client = request.client.host if request.client else "unknown"
    return template.fill({"client": client, **request.path_params})
