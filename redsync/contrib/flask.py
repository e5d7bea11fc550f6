"""Flask: the client of the process, and locks and rate limiters as decorators of views.

```python
from redsync.contrib.flask import Redsync

app.config["REDSYNC"] = {"URLS": ["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"]}
redsync = Redsync(app)


@app.post("/orders/<int:number>/pay")
@redsync.limit("pay:{client}", 10, per=60)
@redsync.lock("order:{number}")
def pay(number): ...
```
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar, cast

try:
    from flask import Flask, current_app, g, make_response, request
    from werkzeug.exceptions import HTTPException, default_exceptions
except ImportError as error:  # pragma: no cover
    raise ImportError("redsync.contrib.flask needs `pip install redsync-toolkit[flask]`") from error

from redsync import AcquireTimeout, Client, Hold, LeaseLostError, QuorumError
from redsync.contrib.http import BUSY, LIMITED, UNAVAILABLE, Policy
from redsync.contrib.names import NameTemplate
from redsync.contrib.process_client import ProcessClient, make_client

__all__ = ["Redsync"]

P = ParamSpec("P")
R = TypeVar("R")


class _WithFields(HTTPException):
    """A reply with header fields of its own."""

    fields: Mapping[str, str] = MappingProxyType({})

    def get_headers(self, *args: Any, **kwargs: Any) -> list[tuple[str, str]]:
        return [*super().get_headers(*args, **kwargs), *self.fields.items()]


@functools.cache
def _refusals(status: int) -> type[_WithFields]:
    """Return the class of replies of that status; an error handler for the status, or for werkzeug's class, sees it."""
    usual = default_exceptions.get(status, HTTPException)
    return type(usual.__name__, (_WithFields, usual), {"code": status})


def _refusal(status: int, text: str, fields: Mapping[str, str] = MappingProxyType({})) -> HTTPException:
    refusal = _refusals(status)(text)
    refusal.fields = fields
    return refusal


class Redsync:
    """The client of an application, and the decorators that use it.

    Args:
        app: The application; None: `init_app` is called later.

    Raises:
        ConfigurationError: The setting `REDSYNC` makes no client, and neither does the environment.
    """

    def __init__(self, app: Flask | None = None) -> None:
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Check the settings of an application, and be its extension; the client is made at its first use.

        `REDSYNC` is a dictionary of `URLS` and the options of `Client`, in capitals. What it leaves out comes from
        `REDSYNC_URLS` and the other variables that `Client.from_env` reads. It waits for no node.

        Raises:
            ConfigurationError: The settings make no client.
        """

        def make() -> Client:
            return make_client("REDSYNC", app.config.get("REDSYNC", {}), str.upper)

        make().close()
        app.extensions["redsync"] = ProcessClient(make)

    @property
    def client(self) -> Client:
        """The client of the present application in this process; made at its first use, so after a fork.

        Raises:
            RuntimeError: There is no present application, or it does not know redsync.
        """
        known = current_app.extensions.get("redsync")
        if known is None:
            raise RuntimeError("the application does not know redsync: call `redsync.init_app(app)`")
        return cast("ProcessClient", known).get()

    @property
    def hold(self) -> Hold:
        """The hold of the innermost `lock` around the present view."""
        return g.redsync_holds[-1]  # type: ignore[no-any-return]

    def lock(
        self, name: str, *, timeout: float = 0.5, busy: int = 423, **options: Any
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Return a decorator that holds a lock while a view runs; `redsync.hold` is the hold.

        While others hold it longer than `timeout`, the reply is `busy`. It is 503 when too few nodes answer, or when
        the lock was lost. A streaming response is sent after the view, so without the lock.

        Args:
            name: The lock's name; `{number}` in it stands for the view's argument, `{client}` for the client's address.
            timeout: For how many seconds to wait.
            busy: The status when others hold it: 423 (Locked), or 409 (Conflict).
            **options: Options of `Client.get_lock`.

        Raises:
            TypeError: `name` is no string.
            ValueError: `name` is no template, `timeout` is negative, or `busy` is no status of an error.
        """
        template = NameTemplate(name)
        if not timeout >= 0:
            raise ValueError(f"timeout is a number of seconds from 0 on, not {timeout!r}")
        if busy not in range(400, 600):
            raise ValueError(f"busy is the status of an error, such as 423 or 409, not {busy!r}")

        def decorate(view: Callable[P, R]) -> Callable[P, R]:
            @functools.wraps(view)
            def locked(*args: P.args, **kwargs: P.kwargs) -> R:
                lock = self.client.get_lock(_filled(template), timeout=timeout, **options)
                holds = g.setdefault("redsync_holds", [])
                depth = len(holds)
                try:
                    with lock as hold:
                        holds.append(hold)
                        return view(*args, **kwargs)
                except (AcquireTimeout, QuorumError, LeaseLostError) as error:
                    if error.name != lock.name:
                        raise  # That of another lock is the view's own trouble.
                    if isinstance(error, AcquireTimeout):
                        raise _refusal(busy, BUSY, {"Retry-After": "1"}) from None
                    raise _refusal(503, UNAVAILABLE) from error
                finally:
                    del holds[depth:]

            return locked

        return decorate

    def limit(self, name: str, rate: int, *, per: float) -> Callable[[Callable[P, Any]], Callable[P, Any]]:
        """Return a decorator that admits so many requests, else replies 429 with `Retry-After` and `RateLimit`.

        Every reply of the view has `RateLimit-Policy`. When too few nodes answer, the reply is 503.

        Args:
            name: The limiter's name; `{client}` in it stands for the client's address, `{number}` for an argument.
            rate: How many are allowed.
            per: In how many seconds.

        Raises:
            TypeError: `name` is no string.
            ValueError: `name` is no template.
        """
        template, policy = NameTemplate(name), Policy(name, rate, per)

        def decorate(view: Callable[P, Any]) -> Callable[P, Any]:
            @functools.wraps(view)
            def limited(*args: P.args, **kwargs: P.kwargs) -> Any:
                limiter = self.client.get_rate_limiter(_filled(template), rate, per)
                try:
                    retry_after = None if limiter.acquire(blocking=False) else limiter.retry_after()
                except QuorumError as error:
                    raise _refusal(503, UNAVAILABLE, policy.fields) from error
                if retry_after is not None:
                    raise _refusal(429, LIMITED, policy.refusal(retry_after))
                reply = make_response(view(*args, **kwargs))
                reply.headers.update(policy.fields)
                return reply

            return limited

        return decorate


def _filled(template: NameTemplate) -> str:
    return template.fill({"client": request.remote_addr or "unknown", **(request.view_args or {})})
