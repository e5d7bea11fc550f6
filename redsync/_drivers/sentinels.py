"""Nodes that a Sentinel group stands for: how to connect to their masters and their Sentinels.

Callers name them by a URL (`sentinel_urls`), or by a client that `Sentinel.master_for` of redis-py's returned.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import redis.asyncio.connection
import redis.connection

from redsync._core.sentinel_urls import GroupUrl, require_different
from redsync._drivers.locators import Locator, Witness

__all__ = ["Settings", "managed", "named"]


class Settings(NamedTuple):
    """How to connect: what we use of a pool of redis-py's."""

    connection_class: Any
    connection_kwargs: dict[str, Any]


def named(url: str, client_class: type[Any]) -> tuple[Any, Locator]:
    """Return how to connect to the master that a URL names, and its locator.

    Args:
        url: The URL.
        client_class: `redis.Redis` or `redis.asyncio.Redis`.

    Raises:
        GroupUrlError: It names no Sentinel group.
        ValueError: redis-py does not know an option; the text may show it.
    """
    said = GroupUrl.read(url)
    witnesses = [
        Witness(address, client_class.from_url(sentinel).connection_pool) for address, sentinel in said.sentinels
    ]
    return client_class.from_url(said.master).connection_pool, Locator(said.service, witnesses, said.replicas)


def managed(pool: Any) -> tuple[Any, Locator]:
    """Return what `named` does, of the pool of a client that `Sentinel.master_for` returned.

    Raises:
        GroupUrlError: It has no Sentinels, or one twice.
    """
    kwargs = {name: value for name, value in pool.connection_kwargs.items() if name != "connection_pool"}
    witnesses = []
    for sentinel in pool.sentinel_manager.sentinels:
        settings = sentinel.connection_pool.connection_kwargs
        address = f"{settings.get('host', 'localhost')}:{settings.get('port', 6379)}"
        witnesses.append(Witness(address, sentinel.connection_pool))
    require_different([witness.address for witness in witnesses])
    return Settings(_unmanaged(pool.connection_class), kwargs), Locator(pool.service_name, witnesses, 0)


def _unmanaged(connection_class: type[Any]) -> type[Any]:
    """Return the class whose connections go to the host they are given, and do not ask Sentinels themselves."""
    module: Any = redis.connection
    if issubclass(connection_class, redis.asyncio.connection.AbstractConnection):
        module = redis.asyncio.connection
    kind: type[Any] = module.SSLConnection if issubclass(connection_class, module.SSLConnection) else module.Connection
    return kind
