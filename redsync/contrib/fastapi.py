"""FastAPI: a client that lives as long as the application; locks and rate limiters as dependencies.

```python
from typing import Annotated

from fastapi import FastAPI
from redsync import AsyncHold
from redsync.contrib.fastapi import Redsync

redsync = Redsync()  # nodes and settings come from REDSYNC_URLS and so on
app = FastAPI(lifespan=redsync.lifespan)


@app.post("/orders/{number:int}/pay", dependencies=[redsync.limit("pay:{client}", 10, per=60)])
async def pay(number: int, hold: Annotated[AsyncHold, redsync.lock("order:{number}")]): ...
```

A name has the path's own text. With a plain `{number}` a caller who writes `+7` for 7 would get another lock: FastAPI
reads the text as a number only later.

The lock is released before the reply is sent (`scope="function"`): a slow HTTP client does not prolong the hold, and
the reply can still report a loss that the release finds.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

try:
    from fastapi import HTTPException
    from fastapi.params import Depends
    from fastapi.requests import HTTPConnection, Request  # the first is a Request or a WebSocket
except ImportError as error:  # pragma: no cover
    raise ImportError("redsync.contrib.fastapi needs `pip install redsync-toolkit[fastapi]`") from error

from redsync import AsyncClient, AsyncHold
from redsync.contrib.shared import ErrorReply, Guards, Rates, Reply, RequestName, explained, too_many

__all__ = ["Redsync"]


class _Dependency(Depends):
    """A dependency as `redsync.lock(...)`, and also within `Depends(...)`, where FastAPI's default is its scope."""

    def __init__(self, function: Callable[[HTTPConnection], Any]) -> None:
        super().__init__(function, scope="function")
        # By this name FastAPI finds the signature. The class is frozen.
        object.__setattr__(self, "__wrapped__", function)

    def __call__(self, request: HTTPConnection) -> Any:
        assert self.dependency is not None, "it was made of one"
        return self.dependency(request)


class Redsync(Guards[Any, Callable[[Request], str]]):
    """The client of an application, and the dependencies that use it.

    The value of a `lock` is the `AsyncHold`. On a loss, an `async def` function is cancelled at its next `await`.

    Args:
        urls: The nodes' URLs; by default those of `REDSYNC_URLS`. For other defaults, see `AsyncClient.from_env`.
        **options: Options of `AsyncClient`.
    """

    def __init__(self, urls: Sequence[str] | None = None, **options: Any) -> None:
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

    def _error(self, refusal: ErrorReply) -> HTTPException:
        return HTTPException(*refusal)

    def _lock(self, name: RequestName, options: dict[str, Any], reply: Reply) -> Any:
        async def held(request: HTTPConnection) -> AsyncIterator[AsyncHold]:
            lock = self.client.get_lock(_filled(name, request), **options)
            with explained(lock.name, reply):
                async with lock as hold:
                    yield hold

        return _Dependency(held)

    def _limit(self, name: RequestName, rate: Rates, per: float | None, reply: Reply) -> Any:
        async def admitted(request: HTTPConnection) -> None:
            limiter = self.client.get_rate_limiter(_filled(name, request), rate, per)
            with explained(limiter.name, reply):
                if not await limiter.acquire(blocking=False):
                    raise self._error(too_many(await limiter.retry_after()))

        return _Dependency(admitted)


def _filled(name: RequestName, request: HTTPConnection) -> str:
    return name.of(request.path_params, request.client.host if request.client else None, request)
