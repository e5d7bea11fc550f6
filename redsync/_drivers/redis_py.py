"""redis-py: everything that the drivers need of it beyond its public interface, with the reasons.

redis-py opens and authenticates the connections, so all its options work: URLs, TLS, unix sockets, ACL, credential
providers, Sentinel. The client takes a pool's connection class and arguments, never a connection of the pool, and
replaces what would hurt a quorum client: no retries, explicit timeouts, no HELLO, no maintenance notifications.

It uses these parts that redis-py does not document:

* `connection_pool.connection_kwargs`, `connection_class`: the caller's settings; there is no other way to read them.
* `_sock`, `_reader` and `_writer` of a connection: after the handshake the driver takes over the socket. A connection
  of redis-py answers one command at a time, and waits for each.
* `_parser` of a connection for threads: it refers to itself until it gets another handler, so the garbage collector
  would call its `__del__` in any thread. There Python drops the exception of a signal's handler, such as `sys.exit()`.
* `_connection_arguments`, asyncio's: how a connection is opened. Without `happy_eyeballs_delay` asyncio tries the
  addresses of a name one after the other, and redis-py gives all of them one timeout, so behind an address that
  swallows packets it finds none.
* `driver_info`, `lib_name`, `lib_version`: a connection must not introduce itself as redis-py, see below.
"""

from __future__ import annotations

import asyncio
import ipaddress

# redis-py imports it when a client is made: in a child that another thread forks meanwhile, it would stay locked.
import secrets  # noqa: F401
import socket
import sys
from contextlib import suppress
from inspect import signature
from typing import Any, Final, NamedTuple

import redis.asyncio.connection
import redis.connection
from redis.backoff import NoBackoff
from redis.retry import Retry

from redsync._core.urls import NodeUrlError

__all__ = [
    "Settings",
    "connect",
    "is_client",
    "new_connection",
    "settings_of",
    "take_socket",
    "take_streams",
]

_DROPPED: Final = (
    *("maint_notifications_pool_handler", "oss_cluster_maint_notifications_handler", "parser_class"),
    *("driver_info", "lib_name", "lib_version"),
)

_OF_VALKEY_PY: Final = "valkey_", "cache_", "client_cache"

_UNINTRODUCED: Final = (
    {"driver_info": None} if "driver_info" in signature(redis.connection.AbstractConnection.__init__).parameters else {}
)
"""Keeps a connection from computing its own description, which takes longer than everything else."""

_NEXT_ADDRESS: Final = 0.25
"""Seconds without an answer after which the next address of a server's name is tried too."""

_NO_MAINTENANCE: Any = None
with suppress(ImportError):  # Older ones lack it.
    from redis.maint_notifications import MaintNotificationsConfig

    _NO_MAINTENANCE = MaintNotificationsConfig(enabled=False)


def new_connection(pool: Any, timeout: float, **settings: Any) -> Any:
    """Return a new, unconnected redis-py connection with a pool's options.

    `timeout` is the time in seconds for connecting, and for each answer until then. The settings override the pool's.
    """
    kwargs = {key: value for key, value in pool.connection_kwargs.items() if key not in _DROPPED}
    kwargs.update(
        protocol=2,  # redis-py takes any answer to HELLO 3 for a map, so the driver asks by itself
        retry=Retry(NoBackoff(), 0),
        retry_on_error=[],
        socket_timeout=timeout,
        socket_connect_timeout=timeout,
        health_check_interval=0,
        decode_responses=False,
        **_UNINTRODUCED,
    )
    kwargs.update(settings)
    if "maint_notifications_config" in kwargs:
        kwargs["maint_notifications_config"] = _NO_MAINTENANCE
    connection = pool.connection_class(**kwargs)
    # Send no CLIENT SETINFO: ACL users may lack the permission, and servers before 7.2 don't know the command, so there
    # it can't be granted. Set attributes, because the argument's name differs between versions of redis-py.
    connection.driver_info = connection.lib_name = connection.lib_version = None
    is_for_threads = isinstance(connection, redis.connection.AbstractConnection)
    if is_for_threads and hasattr(connection._parser, "set_pubsub_push_handler"):  # One in Python alone lacks it.
        connection._parser.set_pubsub_push_handler(_return_push)
    return connection


def _return_push(push: object) -> object:
    return push


class Settings(NamedTuple):
    """The parts of a redis-py pool that make a connection."""

    connection_class: Any
    connection_kwargs: dict[str, Any]


def is_client(thing: object, client_class: type[Any]) -> bool:
    """Return whether it is a client of that class, or the one of valkey-py, which is a fork of redis-py."""
    twin = client_class.__module__.replace("redis", "valkey"), "Valkey"
    return isinstance(thing, client_class) or twin in [(base.__module__, base.__name__) for base in type(thing).__mro__]


def settings_of(client: Any, client_class: type[Any]) -> Any:
    """Return what makes a client's connections: its pool; for valkey-py, the same settings for redis-py's connections.

    Raises:
        NodeUrlError: It is a client of valkey-py with connections of another kind: by Sentinels, fake ones, or with a
            function of the caller's at each connect.
    """
    pool = client.connection_pool
    if not any(base.__module__.startswith("valkey.") for base in pool.connection_class.__mro__):
        return pool
    module: Any = redis.connection if client_class is redis.Redis else redis.asyncio.connection
    kind = getattr(module, pool.connection_class.__name__, None)
    if kind is None or pool.connection_kwargs.get("valkey_connect_func") is not None:
        raise NodeUrlError("is a valkey-py client whose connections redis-py does not have: give its URL instead")
    ours = {key: value for key, value in pool.connection_kwargs.items() if not key.startswith(_OF_VALKEY_PY)}
    return Settings(kind, ours)


def take_socket(connection: Any) -> socket.socket:
    """Return the socket of a connected connection for threads; redis-py no longer closes it."""
    sock: socket.socket = connection._sock
    connection._sock = None
    return sock


def take_streams(connection: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Return the streams of a connected connection for asyncio; redis-py no longer uses them.

    Keep the writer as long as its asyncio transport, which it closes when it is collected.
    """
    streams = connection._reader, connection._writer
    connection._reader = connection._writer = None
    return streams


async def connect(connection: Any) -> None:
    """Connect and authenticate a connection for asyncio.

    An address that refuses costs nothing, the next one is tried at once. After one that is silent the next one is tried
    too. uvloop can't do that; asyncio's fails with eager tasks before Python 3.13.1, so with any task factory there.

    Raises:
        OSError, RedisError: The server was unreachable or refused the client.
        CancelledError: The task was cancelled.
    """
    host, loop = getattr(connection, "host", None), asyncio.get_running_loop()
    may_race = isinstance(loop, asyncio.BaseEventLoop) and (
        loop.get_task_factory() is None or not (3, 12) <= sys.version_info < (3, 13, 1)
    )
    if host is not None and not _is_address(host) and may_race:
        arguments = {**connection._connection_arguments(), "happy_eyeballs_delay": _NEXT_ADDRESS}
        connection._connection_arguments = lambda: arguments
    task = asyncio.current_task()
    try:
        await connection.connect()
    except asyncio.CancelledError:
        if task is None or task.cancelling():
            raise
        # A credential provider awaited something else that was cancelled; the task would end, and none take its place.
        raise ConnectionError("its credential provider was cancelled") from None
    if task is not None and task.cancelling():
        # redis-py sends through `asyncio.wait_for`, which swallows some cancellations on Python 3.11.
        raise asyncio.CancelledError


def _is_address(host: str) -> bool:
    with suppress(ValueError):
        ipaddress.ip_address(host)
        return True
    return False
