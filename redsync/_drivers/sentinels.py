"""Nodes that a Sentinel group stands for, as callers name them: by a URL, or by a client of redis-py's.

    redis+sentinel://user:password@host:26379,host:26379,host:26379/mymaster/0?replicas=2

The user, the password, the database and all options of redis-py concern the master; `sentinel_username` and
`sentinel_password` are for the Sentinels. With `rediss+sentinel://` the connections to both are encrypted.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlencode

import redis.asyncio.connection
import redis.connection
import redis.sentinel

from redsync._drivers.locators import Locator, Witness

__all__ = ["Settings", "UrlError", "client_of", "managed", "read_url"]

_PORT: Final = 26379
_MOST_REPLICAS: Final = 100
_URL: Final = re.compile(r"redis(s?)\+sentinel://(?:([^@/]*)@)?([^@/?#]+)/([^/?#]+)(?:/([0-9]+))?/?(?:\?([^#]*))?")
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^:\[\]]+)(?::([0-9]{1,5}))?")


class UrlError(ValueError):
    """A URL names no Sentinel group; the text says what is wrong, and shows nothing of the URL."""


class Settings(NamedTuple):
    """How to connect: what we use of a pool of redis-py's."""

    connection_class: Any
    connection_kwargs: dict[str, Any]


def read_url(url: str, client_class: type[Any], **settings: Any) -> tuple[Any, Locator]:
    """Return how to connect to the master that a URL names, and its locator.

    Args:
        url: The URL.
        client_class: `redis.Redis` or `redis.asyncio.Redis`.
        **settings: Options of redis-py's for all connections, unless the URL has others.

    Raises:
        UrlError: It is no such URL.
        ValueError: redis-py does not know an option; the text may show it.
    """
    read = _URL.fullmatch(url)
    if read is None:
        raise UrlError("is no URL such as redis+sentinel://user:password@host:26379,host:26379/mymaster/0")
    tls, login, hosts, service, db, query = read.groups()
    options = dict(parse_qsl(query or "", keep_blank_values=True))
    replicas = _number(options.pop("replicas", "0"))
    names = quote(options.pop("sentinel_username", ""), safe=""), quote(options.pop("sentinel_password", ""), safe="")
    scheme = f"redis{tls}"
    login = f"{login}@" if login else ""
    pool = client_class.from_url(
        f"{scheme}://{login}master:1/{db or 0}?{urlencode(options)}", **settings
    ).connection_pool
    encryption = urlencode({name: value for name, value in options.items() if name.startswith("ssl_")})
    admission = "{}:{}@".format(*names) if any(names) else ""
    witnesses = []
    for host in hosts.split(","):
        address = _address(host.strip())
        sentinel = client_class.from_url(f"{scheme}://{admission}{address}/0?{encryption}", **settings).connection_pool
        witnesses.append(Witness(address, sentinel))
    _require_different(witnesses)
    return pool, Locator(unquote(service), witnesses, replicas)


def managed(pool: Any) -> tuple[Any, Locator]:
    """Return what `read_url` does, of the pool of a client that `Sentinel.master_for` returned.

    Raises:
        UrlError: It has no Sentinels, or one twice.
    """
    kwargs = {name: value for name, value in pool.connection_kwargs.items() if name != "connection_pool"}
    witnesses = []
    for sentinel in pool.sentinel_manager.sentinels:
        settings = sentinel.connection_pool.connection_kwargs
        address = f"{settings.get('host', 'localhost')}:{settings.get('port', _PORT)}"
        witnesses.append(Witness(address, sentinel.connection_pool))
    _require_different(witnesses)
    return Settings(_unmanaged(pool.connection_class), kwargs), Locator(pool.service_name, witnesses, 0)


def client_of(url: str, client_class: type[Any], **settings: Any) -> tuple[str, int, Any]:
    """Return the address of the group that a URL names, its number of replicas, and a client of redis-py's.

    The client asks the Sentinels at each connect, and believes the first that answers: enough for looking.

    Args:
        url: The URL.
        client_class: `redis.Redis`.
        **settings: As for `read_url`, which raises the same.
    """
    pool, locator = read_url(url, client_class, **settings)
    manager: Any = redis.sentinel.Sentinel([])  # type: ignore[no-untyped-call]
    manager.sentinels = [client_class(connection_pool=witness.pool) for witness in locator.witnesses]
    kwargs = {name: value for name, value in pool.connection_kwargs.items() if name not in ("host", "port")}
    tls = issubclass(pool.connection_class, redis.connection.SSLConnection)
    client = manager.master_for(locator.service, client_class, ssl=tls, **kwargs)
    return f"{locator.service}@{locator.witnesses[0].address}", locator.replicas, client


def _unmanaged(connection_class: type[Any]) -> type[Any]:
    """Return the class whose connections go to the host they are given, and do not ask Sentinels themselves."""
    module: Any = redis.connection
    if issubclass(connection_class, redis.asyncio.connection.AbstractConnection):
        module = redis.asyncio.connection
    kind: type[Any] = module.SSLConnection if issubclass(connection_class, module.SSLConnection) else module.Connection
    return kind


def _address(host: str) -> str:
    read = _HOST.fullmatch(host)
    if read is None or not 0 < int(read[2] or _PORT) < 1 << 16:
        raise UrlError("names a Sentinel that is no host:port")
    return f"{read[1]}:{read[2] or _PORT}"


def _number(text: str) -> int:
    if not text.isdecimal() or int(text) > _MOST_REPLICAS:
        raise UrlError("has replicas= with something that is no number of replicas")
    return int(text)


def _require_different(witnesses: list[Witness]) -> None:
    addresses = [witness.address for witness in witnesses]
    if not addresses:
        raise UrlError("names no Sentinel")
    if len(set(addresses)) < len(addresses):
        raise UrlError("names a Sentinel twice: list each once, or one failure would count as several")
