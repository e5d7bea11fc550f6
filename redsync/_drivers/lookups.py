"""Lookups: at most one lookup of a node's name at a time, besides that of the connect under way.

asyncio asks the resolver in a pool of a few threads, which it shares with the application, and nothing can stop a
thread there. With a resolver that does not answer, each connect that gives up leaves one behind, until none is left for
the application and the other nodes. So after a connect that ran out of time, the next ones wait for a lookup that is
kept from one to the other, and connect only once that has ended.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Collection
from contextlib import suppress
from functools import partial
from typing import Any, Final

from redis.exceptions import TimeoutError as RedisTimeoutError

__all__ = ["Lookups"]


class Lookups:
    """The lookups of one client, in the thread of its loop."""

    def __init__(self) -> None:
        self._slow: Final[set[str]] = set()
        self._under_way: Final[dict[str, asyncio.Future[Any]]] = {}

    @property
    def under_way(self) -> Collection[asyncio.Future[Any]]:
        """The lookups that have not ended; they may be cancelled."""
        return self._under_way.values()

    async def connect(self, connection: Any, timeout: float) -> None:
        """Connect and authenticate a redis-py connection.

        Raises:
            OSError, RedisError: The server was unreachable or refused the client, or its name is not known in time.
        """
        host = getattr(connection, "host", None)
        if host in self._slow:
            await self._look_up(host, timeout)
        try:
            await connection.connect()
        except (TimeoutError, RedisTimeoutError, asyncio.CancelledError):
            if host is not None and not _is_address(host):
                self._slow.add(host)
            raise
        self._slow.discard(host)

    async def _look_up(self, host: str, timeout: float) -> None:
        lookup = self._under_way.get(host)
        if lookup is None:
            ask = asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
            lookup = self._under_way[host] = asyncio.ensure_future(ask)
            lookup.add_done_callback(partial(self._end, host))
        ended, _ = await asyncio.wait([lookup], timeout=timeout)
        if not ended:
            raise TimeoutError(f"{host} was not looked up in time")
        lookup.result()

    def _end(self, host: str, lookup: asyncio.Future[Any]) -> None:
        del self._under_way[host]
        if not lookup.cancelled():
            lookup.exception()  # There may be no connect left that takes it.


def _is_address(host: str) -> bool:
    """Return True for an IP address, which needs no resolver."""
    for family in (socket.AF_INET, socket.AF_INET6):
        with suppress(OSError):
            socket.inet_pton(family, host)
            return True
    return False
