"""Nodes as given by callers: URLs, or redis-py clients."""

from __future__ import annotations

# Python imports it at the first look-up of a host's name, which may be in a thread while another one forks.
import encodings.idna  # noqa: F401
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from redsync._core.cluster_urls import ClusterUrl
from redsync._core.node_urls import NodeUrlError, check_url
from redsync._drivers import sentinels
from redsync._drivers.clusters import lent
from redsync._drivers.dialects import ClusterDialect
from redsync._drivers.nodes import Node
from redsync._drivers.urls import url_of
from redsync.exceptions import ConfigurationError

__all__ = ["make_nodes"]

_SEVERAL: Final = re.compile(r",\s*[a-z+]+://")
"""A separator between two URLs in one string; redis-py would use the first URL and ignore the rest."""


_GROUPS: Final = "redis+sentinel://", "rediss+sentinel://", "redis+cluster://", "rediss+cluster://"


def make_nodes(nodes: Any, client_class: type[Any]) -> list[Node]:
    """Return the nodes that a caller gave as URLs or as redis-py clients: one, or a list.

    Errors never repeat the argument, because it may contain a password.

    Raises:
        ConfigurationError: There is no node, one is listed twice, or an argument is neither.
    """
    given = [nodes] if isinstance(nodes, str | client_class) else nodes
    if isinstance(given, bytes | Mapping) or not isinstance(given, Iterable):
        raise ConfigurationError(f"nodes must be {_one(client_class)}, or a list of these, not {_type_of(given)}")
    made: list[Node] = []
    for number, node in enumerate(given, 1):
        made += _make(len(made), f"node {number}", node, client_class)
    if not made:
        raise ConfigurationError(f"a client needs at least one node: {_one(client_class)}, or a list of these")
    addresses = [node.address for node in made]
    twice = {address for address in addresses if addresses.count(address) > 1}
    if twice:
        raise ConfigurationError(f"{min(twice)} is listed more than once: the nodes must be different servers")
    return made


def _make(index: int, which: str, node: Any, client_class: type[Any]) -> list[Node]:
    """Return the nodes that one argument stands for; the first has that index."""
    if isinstance(node, str):
        if _SEVERAL.search(node):
            raise ConfigurationError(f"{which} is several URLs in one string: give a list with one URL for each node")
        if node.startswith(_GROUPS):
            return _located(index, which, node, client_class)
        try:
            check_url(node)
            pool: Any = client_class.from_url(node).connection_pool
        except NodeUrlError as error:
            raise ConfigurationError(f"{which} {error}") from None
        except ValueError:
            raise _unknown_option(which) from None
    elif isinstance(node, client_class):
        pool = node.connection_pool
    else:
        raise ConfigurationError(f"{which} must be {_one(client_class)}, not {_type_of(node)}")
    if hasattr(pool, "sentinel_manager"):
        return _located(index, which, pool, client_class)
    kwargs = pool.connection_kwargs
    address = kwargs.get("path") or f"{kwargs.get('host', 'localhost')}:{kwargs.get('port', 6379)}"
    url, unsaid = (node, "") if isinstance(node, str) else url_of(pool, client_class)
    made = Node(index, pool, address, url, unsaid=unsaid)
    try:
        made.try_options()
    except (ValueError, TypeError):
        raise _unknown_option(which) from None
    return [made]


def _located(index: int, which: str, given: Any, client_class: type[Any]) -> list[Node]:
    """Return the nodes that a Sentinel group or a cluster stands for, given as a URL or a redis-py client."""
    try:
        if isinstance(given, str) and ClusterUrl.matches(given):
            nodes = _voters(index, given, client_class)
        else:
            nodes = [_group(index, given, client_class)]
        for node in nodes:
            node.try_options()
    except NodeUrlError as error:
        raise ConfigurationError(f"{which} {error}") from None
    except (ValueError, TypeError):
        raise _unknown_option(which) from None
    return nodes


def _unknown_option(which: str) -> ConfigurationError:
    # redis-py's message may show a part of the URL.
    return ConfigurationError(f"{which} has an option or a value that redis-py does not know")


def _group(index: int, given: Any, client_class: type[Any]) -> Node:
    url, unsaid = (given, "") if isinstance(given, str) else (None, "its Sentinels: name them by a URL")
    pool, locator = sentinels.managed(given) if url is None else sentinels.named(url, client_class)
    address = f"{locator.service}@{locator.witnesses[0].address}"
    return Node(index, pool, address, url, unsaid=unsaid, locator=locator)


def _voters(first: int, url: str, client_class: type[Any]) -> list[Node]:
    return [
        Node(index, pool, address, url, locator=locator, dialect=ClusterDialect(locator.slot))
        for index, (address, pool, locator) in enumerate(lent(url, client_class), first)
    ]


def _one(client_class: type[Any]) -> str:
    return f"a URL string or a {client_class.__module__.removesuffix('.client')}.{client_class.__name__}"


def _type_of(thing: Any) -> str:
    kind = type(thing)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return f"a value of type {name}"
