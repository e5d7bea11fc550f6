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

__all__ = ["NodeUrlError", "ServersUrl", "check_url", "for_redis_py", "require_different"]

_DATABASE: Final = re.compile(r"/?|/[0-9]+/?")
_EXPECTED: Final = "is not a valid URL; expected something like "
_LIKE: Final = "something like redis://:password@host:6379/0"
_QUOTED: Final = "in a user or password, write %23 for #, %2F for /, %3F for ? and %5B for ["
_MOST_REPLICAS: Final = 100
_MOST_NODES: Final = 99
_SERVERS: Final = re.compile(
    r"redis(s?)\+(?:sentinel|cluster)://(?:([^@/?#]*)@)?([^@/?#]+)(?:/([^?#]*))?(?:\?([^#]*))?"
)
_SERVICE: Final = re.compile(r"([^/]+)(?:/([0-9]+))?/?")
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^:\[\]]+)(?::([0-9]{1,5}))?")


class NodeUrlError(ValueError):
    """Invalid URL of a node, a Sentinel group or a cluster; the text says what is wrong, and shows nothing of it."""


def for_redis_py(url: str) -> str:
    """Return a URL with the scheme that redis-py knows: `redis`, where it is `valkey`.

    Raises:
        NodeUrlError: It is not UTF-8: redis-py would read U+FFFD.
    """
    try:
        unquote(url, errors="strict").encode()
    except UnicodeError:
        raise NodeUrlError("has a URL that is not UTF-8") from None
    return re.sub("^valkey(?=s?[:+])", "redis", url)


def check_url(url: str) -> None:
    """Check that redis-py reads a URL as it was meant.

    Raises:
        NodeUrlError: It does not, or it is not a URL.
    """
    try:
        parts = urlsplit(url)
        if parts.scheme not in ("redis", "rediss", "unix") or parts.port == 0 or not _may_exist(parts.hostname or ""):
            raise ValueError
    except ValueError:
        raise NodeUrlError(f"is not a valid URL; expected {_LIKE}, and {_QUOTED}") from None
    if "#" in url:
        raise NodeUrlError(f"has a # in its URL, which would end it; {_QUOTED}")
    _check_options(parts.query)
    if parts.scheme == "unix":
        if parts.hostname or not parts.path.startswith("/"):
            raise NodeUrlError("has a URL without the path of a socket; expected something like unix:///run/redis.sock")
    elif not parts.hostname:
        raise NodeUrlError(f"has a URL without a host; expected {_LIKE}, and {_QUOTED}")
    elif not _DATABASE.fullmatch(parts.path):
        raise NodeUrlError(f"has a URL whose path is not the number of a database; expected {_LIKE}, and {_QUOTED}")


def _may_exist(host: str) -> bool:
    try:
        unquote(host).encode("idna")  # as redis-py and a look-up do
    except UnicodeError:
        return False
    return True


def _check_options(query: str) -> None:
    if any("=" not in option for option in query.split("&") if option):
        raise NodeUrlError(f"has an option without a value in its URL; {_QUOTED}")


class ServersUrl(NamedTuple):
    """The content of the URL of a Sentinel group or a cluster: of servers that know where the nodes are.

    Attributes:
        node: A redis-py URL with all settings for a node, and a placeholder address.
        servers: The address of each listed server, `host:port`, and a redis-py URL for it.
        replicas: The number of replicas of each node.
        service: The name by which the Sentinels know the master; empty for a cluster.
        nodes: The number of nodes that it provides.
    """

    node: str
    servers: tuple[tuple[str, str], ...]
    replicas: int
    service: str = ""
    nodes: int = 1

    @classmethod
    def read(cls, url: str) -> ServersUrl | None:
        """Return the content of a URL; None if it has another scheme.

        Raises:
            NodeUrlError: It has one of these schemes, but is not valid.
        """
        kind = re.match(r"rediss?\+(sentinel|cluster)://", url)
        if kind is None:
            return None
        return cls._group(url) if kind[1] == "sentinel" else cls._cluster(url)

    @classmethod
    def _group(cls, url: str) -> ServersUrl:
        tls, login, hosts, path, options = _parts(url)
        service = _SERVICE.fullmatch(path)
        if service is None:
            raise NodeUrlError(_EXPECTED + "redis+sentinel://user:password@host:26379,host:26379/mymaster/0")
        replicas = _replicas(options)
        user, password = (quote(options.pop(f"sentinel_{name}", ""), safe="") for name in ("username", "password"))
        encryption = urlencode({name: value for name, value in options.items() if name.startswith("ssl_")})
        begin = f"redis{tls}://{user}:{password}@" if user or password else f"redis{tls}://"
        servers = tuple((address, f"{begin}{address}/0?{encryption}") for address in _addresses(hosts, 26379))
        node = f"redis{tls}://{login}node:1/{service[2] or 0}?{urlencode(options)}"
        return cls(node, servers, replicas, service=unquote(service[1]))

    @classmethod
    def _cluster(cls, url: str) -> ServersUrl:
        tls, login, hosts, path, options = _parts(url)
        if path not in ("", "0"):
            raise NodeUrlError(_EXPECTED + "redis+cluster://user:password@host:6379,host:6379?nodes=3")
        replicas, nodes = _replicas(options), options.pop("nodes", "")
        if not nodes.isdecimal() or not 0 < int(nodes) <= _MOST_NODES:
            raise NodeUrlError("needs nodes=, the number of its masters that vote, such as ?nodes=3")
        begin, settings = f"redis{tls}://{login}", urlencode(options)
        servers = tuple((address, f"{begin}{address}/0?{settings}") for address in _addresses(hosts, 6379))
        return cls(f"{begin}node:1/0?{settings}", servers, replicas, nodes=int(nodes))


def _parts(url: str) -> tuple[str, str, str, str, dict[str, str]]:
    """Return what follows `redis` in the scheme, the login with its @, the hosts, the path, and the options."""
    read = _SERVERS.fullmatch(url)
    # No path is valid for both kinds that begins with a slash.
    tls, login, hosts, path, query = ("", "", "", "/", "") if read is None else read.groups(default="")
    _check_options(query)
    return tls, login and f"{login}@", hosts, path, dict(parse_qsl(query, keep_blank_values=True))


def _addresses(hosts: str, port: int) -> list[str]:
    """Return the addresses that a URL lists; `port` is for those without a port."""
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


def _replicas(options: dict[str, str]) -> int:
    """Remove the number of replicas from a URL's options, and return it."""
    text = options.pop("replicas", "0")
    if not text.isdecimal() or int(text) > _MOST_REPLICAS:
        raise NodeUrlError("has replicas= with something that is not a number of replicas")
    return int(text)


def _address(host: str, port: int) -> str:
    read = _HOST.fullmatch(host)
    if read is None or not (0 < int(read[2] or port) < 1 << 16 and _may_exist(read[1])):
        raise NodeUrlError("names a server that is not host:port")
    return f"{read[1].lower()}:{int(read[2] or port)}"
