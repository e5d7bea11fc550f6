"""URLs of clusters that lend some of their masters as nodes.

    redis+cluster://user:password@host:6379,host:6379,host:6379?nodes=3&replicas=1

The user, the password and all options of redis-py concern all servers. With `rediss+cluster://` the connections are
encrypted.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, urlencode

from redsync._core.sentinel_urls import GroupUrlError, addresses_in, number_of_replicas

__all__ = ["ClusterUrl"]

_PORT: Final = 6379
_MOST_NODES: Final = 99
_URL: Final = re.compile(r"redis(s?)\+cluster://(?:([^@/]*)@)?([^@/?#]+)(?:/0?)?(?:\?([^#]*))?")


class ClusterUrl(NamedTuple):
    """What the URL of a cluster says.

    Attributes:
        server: A URL of redis-py's with all settings for a server, and an address that is none.
        seeds: The address of each server that is listed, `host:port`, and a URL of redis-py's for it.
        nodes: How many nodes the cluster stands for.
        replicas: How many replicas each of its masters has.
    """

    server: str
    seeds: tuple[tuple[str, str], ...]
    nodes: int
    replicas: int

    @staticmethod
    def matches(url: str) -> bool:
        """Whether a URL is about a cluster."""
        return url.startswith(("redis+cluster://", "rediss+cluster://"))

    @classmethod
    def read(cls, url: str) -> ClusterUrl:
        """Return what a URL says.

        Raises:
            GroupUrlError: It is no such URL.
        """
        read = _URL.fullmatch(url)
        if read is None:
            raise GroupUrlError("is no URL such as redis+cluster://user:password@host:6379,host:6379?nodes=3")
        tls, login, hosts, query = read.groups()
        options = dict(parse_qsl(query or "", keep_blank_values=True))
        replicas, nodes = number_of_replicas(options), options.pop("nodes", "")
        if not nodes.isdecimal() or not 0 < int(nodes) <= _MOST_NODES:
            raise GroupUrlError("needs nodes=, the number of its masters that shall vote, such as ?nodes=3")
        begin, settings = f"redis{tls}://{login}@" if login else f"redis{tls}://", urlencode(options)
        seeds = tuple((address, f"{begin}{address}/0?{settings}") for address in addresses_in(hosts, _PORT))
        return cls(f"{begin}server:1/0?{settings}", seeds, int(nodes), replicas)
