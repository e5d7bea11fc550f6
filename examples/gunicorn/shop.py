"""A WSGI application whose requests take turns across all its workers."""

import os
from collections.abc import Callable, Iterable
from typing import Any

from redsync import AcquireTimeout, Client, QuorumError

clients: dict[str, Client] = {}


def locks() -> Client:
    """Return the client of this process: the same for all threads."""
    return clients.get("locks") or clients.setdefault("locks", Client.from_env())


def app(environ: dict[str, Any], start_response: Callable[..., object]) -> Iterable[bytes]:
    try:
        with locks().get_lock("stock", timeout=5.0):
            start_response("200 OK", [("Content-Type", "text/plain")])
            return [f"worker {os.getpid()} client {locks().id}\n".encode()]
    except (AcquireTimeout, QuorumError):  # gunicorn takes an OSError, as both are, for the socket's
        start_response("503 Service Unavailable", [("Retry-After", "5")])
        return [b"busy\n"]
