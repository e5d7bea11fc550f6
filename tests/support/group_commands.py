"""Sending commands to groups of servers, and waiting for them."""

import time
from collections.abc import Callable
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

_POLL_INTERVAL = 0.02
_SETTLE_TIMEOUT = 40.0

UNANSWERED = (redis.ConnectionError, redis.TimeoutError)
"""The errors of a server that is absent or not ready."""

Address = tuple[str, int]


def command(address: Address, *words: str | int) -> Any:
    """Send one command to the server at `address`, on a new connection and without a retry; return the reply.

    Raises:
        redis.RedisError: The server refused, or did not answer within 2 seconds.
    """
    host, port = address
    retry = Retry(NoBackoff(), 0)
    # RESP2, whatever the default is: reply shapes depend on it.
    with redis.Redis(host, port, protocol=2, decode_responses=True, socket_timeout=2.0, retry=retry) as connection:
        return connection.execute_command(*words)


def until(condition: Callable[[], bool], what: str) -> None:
    """Return when the condition holds; `what` says it in words.

    Raises:
        RuntimeError: It did not hold within 40 seconds.
    """
    deadline = time.monotonic() + _SETTLE_TIMEOUT
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"gave up after waiting {_SETTLE_TIMEOUT:g} s until {what}")
        time.sleep(_POLL_INTERVAL)
