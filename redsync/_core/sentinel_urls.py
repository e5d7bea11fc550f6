"""URLs of nodes behind a Sentinel group.

    redis+sentinel://user:password@host:26379,host:26379,host:26379/mymaster/0?replicas=2

The user, the password, the database and all options of redis-py apply to the master; `sentinel_username` and
`sentinel_password` are for the Sentinels. `rediss+sentinel://` encrypts the connections to both.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlencode

from redsync._core.node_urls import NodeUrlError

__all__ = ["GroupUrl", "addresses_in", "number_of_replicas", "require_different"]

_PORT: Final = 26379
_MOST_REPLICAS: Final = 100
_URL: Final = re.compile(r"redis(s?)\+sentinel://(?:([^@/?#]*)@)?([^@/?#]+)/([^/?#]+)(?:/([0-9]+))?/?(?:\?([^#]*))?")
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^:\[\]]+)(?::([0-9]{1,5}))?")


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
        read = _URL.fullmatch(url)
        if read is None:
            like = "redis+sentinel://user:password@host:26379,host:26379/mymaster/0"
            raise NodeUrlError(f"is not a valid URL; expected something like {like}")
        tls, login, hosts, service, db, query = read.groups()
        options = dict(parse_qsl(query or "", keep_blank_values=True))
        replicas = number_of_replicas(options)
        user, password = (quote(options.pop(f"sentinel_{name}", ""), safe="") for name in ("username", "password"))
        encryption = urlencode({name: value for name, value in options.items() if name.startswith("ssl_")})
        addresses = addresses_in(hosts, _PORT)
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
