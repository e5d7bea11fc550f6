"""URLs of clusters, some of whose masters serve as nodes.

    redis+cluster://user:password@host:6379,host:6379,host:6379?nodes=3&replicas=1

The user, the password and all options of redis-py apply to all servers. `rediss+cluster://` encrypts the connections.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, urlencode

from redsync._core.node_urls import NodeUrlError
from redsync._core.sentinel_urls import addresses_in, number_of_replicas

__all__ = ["ClusterUrl"]

_PORT: Final = 6379
_MOST_NODES: Final = 99
_URL: Final = re.compile(r"redis(s?)\+cluster://(?:([^@/?#]*)@)?([^@/?#]+)(?:/0?)?(?:\?([^#]*))?")


class ClusterUrl(NamedTuple):
    """The content of a cluster's URL.

    Attributes:
        server: A redis-py URL with all settings for a server, and a placeholder address.
        seeds: The address of each listed server, `host:port`, and a redis-py URL for it.
        nodes: The number of nodes that the cluster provides.
        replicas: The number of replicas of each of its masters.
    """

    server: str
    seeds: tuple[tuple[str, str], ...]
    nodes: int
    replicas: int

    @staticmethod
    def matches(url: str) -> bool:
        """Return whether a URL is that of a cluster."""
        return url.startswith(("redis+cluster://", "rediss+cluster://"))

    @classmethod
    def read(cls, url: str) -> ClusterUrl:
        """Return the content of a URL.

        Raises:
            NodeUrlError: It is not such a URL.
        """
        read = _URL.fullmatch(url)
        if read is None:
            like = "redis+cluster://user:password@host:6379,host:6379?nodes=3"
            raise NodeUrlError(f"is not a valid URL; expected something like {like}")
        tls, login, hosts, query = read.groups()
        options = dict(parse_qsl(query or "", keep_blank_values=True))
        replicas, nodes = number_of_replicas(options), options.pop("nodes", "")
        if not nodes.isdecimal() or not 0 < int(nodes) <= _MOST_NODES:
            raise NodeUrlError("needs nodes=, the number of its masters that vote, such as ?nodes=3")
        begin, settings = f"redis{tls}://{login}@" if login else f"redis{tls}://", urlencode(options)
        seeds = tuple((address, f"{begin}{address}/0?{settings}") for address in addresses_in(hosts, _PORT))
        return cls(f"{begin}server:1/0?{settings}", seeds, int(nodes), replicas)
