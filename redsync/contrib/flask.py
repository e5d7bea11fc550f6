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
from typing import Any, ParamSpec, TypeVar, cast

try:
    from flask import Flask, current_app, g, make_response, request
    from werkzeug.exceptions import HTTPException, default_exceptions
except ImportError as error:  # pragma: no cover
    raise ImportError("redsync.contrib.flask needs `pip install redsync-toolkit[flask]`") from error

from redsync import AcquireTimeout, Client, Hold, LeaseLostError, QuorumError
from redsync.contrib.shared import Guard, NameTemplate, Policy, ProcessClient, Refusal, make_client, unavailable

__all__ = ["Redsync"]

P = ParamSpec("P")
R = TypeVar("R")


def _error(refusal: Refusal) -> HTTPException:
    """Return a reply as an error, which handlers for its status or for werkzeug's class handle."""
    error = default_exceptions.get(refusal.status, HTTPException)(refusal.text)
    error.code = refusal.status
    error.response = error.get_response()
    error.response.headers.update(refusal.fields)
    return error


class Redsync:
    """The client of an application, and the decorators that use it.

    Args:
        app: The application; None if you call `init_app` later.

    Raises:
        ConfigurationError: The setting `REDSYNC` and the environment have no URLs, or a bad value.
    """

    def __init__(self, app: Flask | None = None) -> None:
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Check an application's settings and register the extension; the client is created at its first use.

        `REDSYNC` is a dictionary of `URLS` and the options of `Client`, in capitals. Missing settings come from
        `REDSYNC_URLS` and the other variables that `Client.from_env` reads. This method does not wait for any node.

        Raises:
            ConfigurationError: There are no URLs, or a setting is bad.
        """

        def make() -> Client:
            return make_client("REDSYNC", app.config.get("REDSYNC", {}), str.upper)

        make().close()
        app.extensions["redsync"] = ProcessClient(make)

    @property
    def client(self) -> Client:
        """The current application's client in this process; created at its first use, so after a fork.

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
        return g.redsync_holds[-1]  # type: ignore[no-any-return]

    def lock(
        self, name: str, *, timeout: float = 0.5, busy: int = 423, **options: Any
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Return a decorator that holds a lock while a view runs; `redsync.hold` is the hold.

        The reply is `busy` if others hold the lock longer than `timeout`, and 503 if too few nodes answer or the lock
        is lost. A streaming response is sent after the view has returned, so without the lock. The view may be `async`,
        as far as Flask runs such views.

        Args:
            name: The lock's name; `{number}` in it stands for the view's argument, `{client}` for the client's address.
            timeout: Seconds to wait.
            busy: The status if others hold the lock: 423 (Locked), or 409 (Conflict).
            **options: Options of `Client.get_lock`.

        Raises:
            TypeError: `name` is not a string.
            ValueError: `name` is not a template, `timeout` is negative, or `busy` is not an error status.
        """
        guard = Guard(name, timeout=timeout, busy=busy, **options)

        def decorate(view: Callable[P, R]) -> Callable[P, R]:
            @functools.wraps(view)
            def locked(*args: P.args, **kwargs: P.kwargs) -> R:
                lock = self.client.get_lock(_filled(guard.name), **guard.options)
                holds = g.setdefault("redsync_holds", [])
                depth = len(holds)
                try:
                    with lock as hold:
                        holds.append(hold)
                        return cast("R", current_app.ensure_sync(view)(*args, **kwargs))
                except (AcquireTimeout, QuorumError, LeaseLostError) as error:
                    raise _error(guard.refusal(error, lock.name)) from error
                finally:
                    del holds[depth:]

            return locked

        return decorate

    def limit(self, name: str, rate: int, *, per: float) -> Callable[[Callable[P, Any]], Callable[P, Any]]:
        """Return a decorator that limits the rate of requests; beyond it, the view replies 429.

        Every reply of the view has `RateLimit-Policy`; a 429 also has `Retry-After` and `RateLimit`. If too few nodes
        answer, the reply is 503.

        Args:
            name: The limiter's name; `{client}` in it stands for the client's address, `{number}` for an argument.
            rate: The number of requests allowed in `per` seconds.
            per: The window in seconds.

        Raises:
            TypeError: `name` is not a string.
            ValueError: `name` is not a template.
        """
        template, policy = NameTemplate(name), Policy(name, rate, per)

        def decorate(view: Callable[P, Any]) -> Callable[P, Any]:
            @functools.wraps(view)
            def limited(*args: P.args, **kwargs: P.kwargs) -> Any:
                limiter = self.client.get_rate_limiter(_filled(template), rate, per)
                try:
                    retry_after = None if limiter.acquire(blocking=False) else limiter.retry_after()
                except QuorumError as error:
                    raise _error(unavailable(policy.fields)) from error
                if retry_after is not None:
                    raise _error(policy.refusal(retry_after))
                reply = make_response(current_app.ensure_sync(view)(*args, **kwargs))
                reply.headers.update(policy.fields)
                return reply

            return limited

        return decorate


def _filled(template: NameTemplate) -> str:
    return template.fill({"client": request.remote_addr or "unknown", **(request.view_args or {})})
