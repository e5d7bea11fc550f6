"""Nodes as given by callers: URLs, of a server, a Sentinel group or a cluster; or redis-py clients."""

from __future__ import annotations

# Python imports it at the first look-up of a host's name, which may be in a thread while another one forks.
import encodings.idna  # noqa: F401
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import redis.asyncio.connection
import redis.connection

from redsync._core.clusters import slots_of
from redsync._core.urls import ClusterUrl, GroupUrl, NodeUrlError, check_url, require_different
from redsync._drivers.discovery import ClusterLocator, SentinelLocator, Witness
from redsync._drivers.nodes import Node
from redsync._drivers.requests import Codec
from redsync.exceptions import ConfigurationError

__all__ = ["make_nodes"]

_LIKE: Final = ", or a list of these"


def make_nodes(nodes: Any, client_class: type[Any]) -> list[Node]:
    """Return the nodes that a caller gave as URLs or as redis-py clients: one, or a list.

    Errors never repeat the argument, because it may contain a password.

    Raises:
        ConfigurationError: There is no node, one is listed twice, or an argument is neither.
    """
    given = [nodes] if isinstance(nodes, str | client_class) else nodes
    if isinstance(given, bytes | Mapping) or not isinstance(given, Iterable):
        raise ConfigurationError(f"nodes must be {_one(client_class)}{_LIKE}, not {_type_of(given)}")
    made: list[Node] = []
    for number, each in enumerate(given, 1):
        if not isinstance(each, str | client_class):
            raise ConfigurationError(f"node {number} must be {_one(client_class)}, not {_type_of(each)}")
        try:
            more = _nodes_of(len(made), each, client_class)
            for node in more:
                node.try_options()
        except NodeUrlError as error:
            raise ConfigurationError(f"node {number} {error}") from None
        except (ValueError, TypeError):
            # redis-py's message may show a part of the URL.
            raise ConfigurationError(f"node {number} has an option or a value that redis-py does not know") from None
        made += more
    if not made:
        raise ConfigurationError(f"a client needs at least one node: {_one(client_class)}{_LIKE}")
    addresses = [node.address for node in made]
    twice = {address for address in addresses if addresses.count(address) > 1}
    if twice:
        raise ConfigurationError(f"{min(twice)} is listed more than once: the nodes must be different servers")
    return made


def _one(client_class: type[Any]) -> str:
    return f"a URL string or a {client_class.__module__.removesuffix('.client')}.{client_class.__name__}"


def _type_of(thing: Any) -> str:
    kind = type(thing)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return f"a value of type {name}"


def _nodes_of(index: int, given: Any, client_class: type[Any]) -> list[Node]:
    """Return the nodes that one argument stands for; the first has that index.

    Raises:
        NodeUrlError: A URL is invalid.
        ValueError: redis-py does not know an option.
    """
    url = given if isinstance(given, str) else None
    if url is None:
        pool: Any = given.connection_pool
        if hasattr(pool, "sentinel_manager"):
            return [_group_of_pool(index, pool)]
    elif url.count("://") > 1:  # redis-py would use the first and ignore the rest
        raise NodeUrlError("is several URLs in one string: give a list with one URL for each node")
    elif ClusterUrl.matches(url):
        return _voters(index, url, client_class)
    elif GroupUrl.matches(url):
        return [_group(index, url, client_class)]
    else:
        check_url(url)
        pool = client_class.from_url(url).connection_pool
    return [Node(index, pool, pool.connection_kwargs.get("path") or _address(pool), url)]


def _address(pool: Any) -> str:
    settings = pool.connection_kwargs
    return f"{settings.get('host', 'localhost')}:{settings.get('port', 6379)}"


def _witnesses(addresses: Iterable[tuple[str, str]], client_class: type[Any]) -> list[Witness]:
    return [Witness(address, client_class.from_url(url).connection_pool) for address, url in addresses]


def _group(index: int, url: str, client_class: type[Any]) -> Node:
    """Return the node that a Sentinel group stands for."""
    said = GroupUrl.read(url)
    locator = SentinelLocator(said.service, _witnesses(said.sentinels, client_class), said.replicas)
    return Node(index, client_class.from_url(said.master).connection_pool, said.address, url, locator=locator)


class _Settings(NamedTuple):
    """The parts of a redis-py pool that make a connection."""

    connection_class: Any
    connection_kwargs: dict[str, Any]


def _group_of_pool(index: int, pool: Any) -> Node:
    """Do the same as `_group` for the pool of a client from redis-py's `Sentinel.master_for`."""
    pools = [sentinel.connection_pool for sentinel in pool.sentinel_manager.sentinels]
    witnesses = [Witness(_address(each), each) for each in pools]
    require_different([witness.address for witness in witnesses])
    # A class whose connections go to the given host, without asking Sentinels themselves.
    module: Any = redis.connection
    if issubclass(pool.connection_class, redis.asyncio.connection.AbstractConnection):
        module = redis.asyncio.connection
    kind = module.SSLConnection if issubclass(pool.connection_class, module.SSLConnection) else module.Connection
    kwargs = {name: value for name, value in pool.connection_kwargs.items() if name != "connection_pool"}
    locator = SentinelLocator(pool.service_name, witnesses, 0)
    address = f"{pool.service_name}@{witnesses[0].address}"
    return Node(index, _Settings(kind, kwargs), address, None, locator=locator)


def _voters(first: int, url: str, client_class: type[Any]) -> list[Node]:
    """Return the nodes that a cluster stands for."""
    said = ClusterUrl.read(url)
    pool, witnesses = client_class.from_url(said.server).connection_pool, _witnesses(said.seeds, client_class)
    nodes = []
    for number, slot in enumerate(slots_of(said.nodes)):
        locator = ClusterLocator(slot, said.nodes, witnesses, said.replicas)
        name = f"{witnesses[0].address}/{number + 1} of {said.nodes}"
        nodes.append(Node(first + number, pool, name, url, locator=locator, codec=Codec(slot)))
    return nodes
