"""Flask: a client for each process; locks and rate limiters as decorators of views.

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
from collections.abc import Callable
from typing import Any, ParamSpec, Protocol, TypeVar, cast

try:
    from flask import Flask, current_app, g, request
    from werkzeug.exceptions import HTTPException, default_exceptions
except ImportError as error:  # pragma: no cover
    raise ImportError("redsync.contrib.flask needs `pip install redsync-toolkit[flask]`") from error

from redsync import Client, Hold
from redsync.contrib.shared import ErrorReply, Guards, ProcessClient, Rates, Reply, RequestName, explained, too_many

__all__ = ["Redsync"]

P = ParamSpec("P")
R = TypeVar("R")


class _Guard(Protocol):
    def __call__(self, view: Callable[P, R], /) -> Callable[P, R]: ...


class Redsync(Guards[_Guard, Callable[[], str]]):
    """The client of an application, and the decorators that use it. A view may be `async`, as far as Flask runs such.

    A streaming response is sent after the view has returned, so without the lock.

    Args:
        app: The application; None if you call `init_app` later.

    Raises:
        ConfigurationError: The setting `REDSYNC` and the environment have no URLs, or a bad value.
    """

    def __init__(self, app: Flask | None = None) -> None:
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Check an application's settings and register the extension; the client is made at its first use.

        `REDSYNC` is a dictionary of `URLS` and the options of `Client`, in capitals. Missing settings come from
        `REDSYNC_URLS` and the other variables that `Client.from_env` reads. This method does not wait for any node.

        Raises:
            ConfigurationError: There are no URLs, or a setting is bad.
        """
        client = ProcessClient("REDSYNC", lambda: app.config.get("REDSYNC", {}))
        client.check()
        app.extensions["redsync"] = client

    @property
    def client(self) -> Client:
        """The current application's client in this process; made at its first use, so after a fork.

        Raises:
            RuntimeError: There is no current application, or `init_app` was not called for it.
        """
        known = current_app.extensions.get("redsync")
        if known is None:
            raise RuntimeError("redsync is not set up in this application: call `redsync.init_app(app)`")
        return cast("ProcessClient", known).get()

    @property
    def hold(self) -> Hold:
        """The hold of the innermost `lock` around the current view."""
        return g.redsync_hold  # type: ignore[no-any-return]

    def _error(self, refusal: ErrorReply) -> HTTPException:
        # Handlers for its status or for werkzeug's class handle it.
        error = default_exceptions.get(refusal.status, HTTPException)(refusal.text)
        error.code = refusal.status
        error.response = error.get_response()
        error.response.headers.update(refusal.fields)
        return error

    def _lock(self, name: RequestName, options: dict[str, Any], reply: Reply) -> _Guard:
        def decorate(view: Callable[P, R]) -> Callable[P, R]:
            @functools.wraps(view)
            def locked(*args: P.args, **kwargs: P.kwargs) -> R:
                lock, outer = self.client.get_lock(_filled(name), **options), g.get("redsync_hold")
                try:
                    with explained(lock.name, reply), lock as g.redsync_hold:
                        return cast("R", current_app.ensure_sync(view)(*args, **kwargs))
                finally:
                    g.redsync_hold = outer

            return locked

        return decorate

    def _limit(self, name: RequestName, rate: Rates, per: float | None, reply: Reply) -> _Guard:
        def decorate(view: Callable[P, R]) -> Callable[P, R]:
            @functools.wraps(view)
            def limited(*args: P.args, **kwargs: P.kwargs) -> R:
                limiter = self.client.get_rate_limiter(_filled(name), rate, per)
                with explained(limiter.name, reply):
                    if not limiter.acquire(blocking=False):
                        raise self._error(too_many(limiter.retry_after()))
                return cast("R", current_app.ensure_sync(view)(*args, **kwargs))

            return limited

        return decorate


def _filled(name: RequestName) -> str:
    return name.of(request.view_args, request.remote_addr)
