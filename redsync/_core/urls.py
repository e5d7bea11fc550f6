"""URLs: of single nodes, of nodes behind a Sentinel group, and of clusters, some of whose masters serve as nodes.

**Nodes.** What redis-py would silently read otherwise than it was meant is refused. In a password, an unquoted `#`, `/`
or `?` ends the address. redis-py then connects to another server, without the password: `redis://:28885#rest@10.0.0.1/0`
leads to localhost, port 28885. It also takes a database that is not a number for database 0. Locks would be granted
there.

**Sentinel groups.**

    redis+sentinel://user:password@host:26379,host:26379,host:26379/mymaster/0?replicas=2

The user, the password, the database and all options of redis-py apply to the master; `sentinel_username` and
`sentinel_password` are for the Sentinels. `rediss+sentinel://` encrypts the connections to both.

**Clusters.**

    redis+cluster://user:password@host:6379,host:6379,host:6379?nodes=3&replicas=1

The user, the password and all options of redis-py apply to all servers. `rediss+cluster://` encrypts the connections.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

__all__ = [
    "ClusterUrl",
    "GroupUrl",
    "NodeUrlError",
    "addresses_in",
    "check_url",
    "for_redis_py",
    "number_of_replicas",
    "require_different",
]

_DATABASE: Final = re.compile(r"/?|/[0-9]+/?")
_LIKE: Final = "something like redis://:password@host:6379/0"
_QUOTED: Final = "in a user or password, write %23 for #, %2F for / and %3F for ?"
_SENTINEL_PORT: Final = 26379
_MOST_REPLICAS: Final = 100
_GROUP: Final = re.compile(r"redis(s?)\+sentinel://(?:([^@/?#]*)@)?([^@/?#]+)/([^/?#]+)(?:/([0-9]+))?/?(?:\?([^#]*))?")
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^:\[\]]+)(?::([0-9]{1,5}))?")
_CLUSTER_PORT: Final = 6379
_MOST_NODES: Final = 99
_CLUSTER: Final = re.compile(r"redis(s?)\+cluster://(?:([^@/?#]*)@)?([^@/?#]+)(?:/0?)?(?:\?([^#]*))?")


class NodeUrlError(ValueError):
    """Invalid URL of a node, a Sentinel group or a cluster; the text says what is wrong, and shows nothing of it."""


def for_redis_py(url: str) -> str:
    """Return a URL with the scheme that redis-py knows: `redis`, where it is `valkey`."""
    return re.sub("^valkey(?=s?[:+])", "redis", url)


def check_url(url: str) -> None:
    """Check that redis-py reads a URL as it was meant.

    Raises:
        NodeUrlError: It does not, or it is not a URL.
    """
    try:
        parts = urlsplit(url)
        if parts.scheme not in ("redis", "rediss", "unix") or parts.port == 0:
            raise ValueError
    except ValueError:
        raise NodeUrlError(f"is not a valid URL; expected {_LIKE}, and {_QUOTED}") from None
    if "#" in url:
        raise NodeUrlError(f"has a # in its URL, which would end it; {_QUOTED}")
    if any("=" not in option for option in parts.query.split("&") if option):
        raise NodeUrlError(f"has an option without a value in its URL; {_QUOTED}")
    if parts.scheme == "unix":
        if parts.hostname or not parts.path.startswith("/"):
            raise NodeUrlError("has a URL without the path of a socket; expected something like unix:///run/redis.sock")
    elif not parts.hostname:
        raise NodeUrlError(f"has a URL without a host; expected {_LIKE}, and {_QUOTED}")
    elif not _DATABASE.fullmatch(parts.path):
        raise NodeUrlError(f"has a URL whose path is not the number of a database; expected {_LIKE}, and {_QUOTED}")


class GroupUrl(NamedTuple):
    """The content of a Sentinel group's URL.

    Attributes:
        service: The name by which the Sentinels know the master.
        master: A redis-py URL with all settings for the master, and a placeholder address.
        sentinels: The address of each Sentinel, `host:port`, and a redis-py URL for it.
        replicas: The number of the group's replicas.
    """

    service: str
    master: str
    sentinels: tuple[tuple[str, str], ...]
    replicas: int

    @property
    def address(self) -> str:
        """The node's address in messages."""
        return f"{self.service}@{self.sentinels[0][0]}"

    @staticmethod
    def matches(url: str) -> bool:
        """Return whether a URL is that of a Sentinel group."""
        return url.startswith(("redis+sentinel://", "rediss+sentinel://"))

    @classmethod
    def read(cls, url: str) -> GroupUrl:
        """Return the content of a URL.

        Raises:
            NodeUrlError: It is not such a URL.
        """
        read = _GROUP.fullmatch(url)
        if read is None:
            like = "redis+sentinel://user:password@host:26379,host:26379/mymaster/0"
            raise NodeUrlError(f"is not a valid URL; expected something like {like}")
        tls, login, hosts, service, db, query = read.groups()
        options = dict(parse_qsl(query or "", keep_blank_values=True))
        replicas = number_of_replicas(options)
        user, password = (quote(options.pop(f"sentinel_{name}", ""), safe="") for name in ("username", "password"))
        encryption = urlencode({name: value for name, value in options.items() if name.startswith("ssl_")})
        addresses = addresses_in(hosts, _SENTINEL_PORT)
        admission = f"{user}:{password}@" if user or password else ""
        login = f"{login}@" if login else ""
        return cls(
            unquote(service),
            f"redis{tls}://{login}master:1/{db or 0}?{urlencode(options)}",
            tuple((address, f"redis{tls}://{admission}{address}/0?{encryption}") for address in addresses),
            replicas,
        )


def addresses_in(hosts: str, port: int) -> list[str]:
    """Return the addresses that a URL lists; `port` is for those without a port.

    Raises:
        NodeUrlError: One is not an address, or is there twice.
    """
    addresses = [_address(host.strip(), port) for host in hosts.split(",")]
    require_different(addresses)
    return addresses


def require_different(addresses: Sequence[str]) -> None:
    """Check a list of addresses.

    Raises:
        NodeUrlError: There is none, or one is there twice.
    """
    if not addresses:
        raise NodeUrlError("names no server")
    if len(set(addresses)) < len(addresses):
        raise NodeUrlError("names a server twice: list each once, or one failure would count as several")


def number_of_replicas(options: dict[str, str]) -> int:
    """Remove the number of replicas from a URL's options, and return it.

    Raises:
        NodeUrlError: It is not a valid number.
    """
    text = options.pop("replicas", "0")
    if not text.isdecimal() or int(text) > _MOST_REPLICAS:
        raise NodeUrlError("has replicas= with something that is not a number of replicas")
    return int(text)


def _address(host: str, port: int) -> str:
    read = _HOST.fullmatch(host)
    if read is None or not 0 < int(read[2] or port) < 1 << 16:
        raise NodeUrlError("names a server that is not host:port")
    return f"{read[1]}:{read[2] or port}"


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
        read = _CLUSTER.fullmatch(url)
        if read is None:
            like = "redis+cluster://user:password@host:6379,host:6379?nodes=3"
            raise NodeUrlError(f"is not a valid URL; expected something like {like}")
        tls, login, hosts, query = read.groups()
        options = dict(parse_qsl(query or "", keep_blank_values=True))
        replicas, nodes = number_of_replicas(options), options.pop("nodes", "")
        if not nodes.isdecimal() or not 0 < int(nodes) <= _MOST_NODES:
            raise NodeUrlError("needs nodes=, the number of its masters that vote, such as ?nodes=3")
        begin, settings = f"redis{tls}://{login}@" if login else f"redis{tls}://", urlencode(options)
        seeds = tuple((address, f"{begin}{address}/0?{settings}") for address in addresses_in(hosts, _CLUSTER_PORT))
        return cls(f"{begin}server:1/0?{settings}", seeds, int(nodes), replicas)
