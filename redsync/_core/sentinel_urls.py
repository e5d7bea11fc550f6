"""URLs of nodes that a Sentinel group stands for.

    redis+sentinel://user:password@host:26379,host:26379,host:26379/mymaster/0?replicas=2

The user, the password, the database and all options of redis-py concern the master; `sentinel_username` and
`sentinel_password` are for the Sentinels. With `rediss+sentinel://` the connections to both are encrypted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlencode

__all__ = ["GroupUrl", "GroupUrlError", "addresses_in", "number_of_replicas", "require_different"]

_PORT: Final = 26379
_MOST_REPLICAS: Final = 100
_URL: Final = re.compile(r"redis(s?)\+sentinel://(?:([^@/]*)@)?([^@/?#]+)/([^/?#]+)(?:/([0-9]+))?/?(?:\?([^#]*))?")
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^:\[\]]+)(?::([0-9]{1,5}))?")


class GroupUrlError(ValueError):
    """A URL names no Sentinel group; the text says what is wrong, and shows nothing of the URL."""


class GroupUrl(NamedTuple):
    """What the URL of a Sentinel group says.

    Attributes:
        service: The name by which the Sentinels know the master.
        master: A URL of redis-py's with all settings for the master, and an address that is none.
        sentinels: The address of each Sentinel, `host:port`, and a URL of redis-py's for it.
        replicas: How many replicas the group has.
    """

    service: str
    master: str
    sentinels: tuple[tuple[str, str], ...]
    replicas: int

    @property
    def address(self) -> str:
        """What to call the node."""
        return f"{self.service}@{self.sentinels[0][0]}"

    @staticmethod
    def matches(url: str) -> bool:
        """Whether a URL is about a Sentinel group."""
        return url.startswith(("redis+sentinel://", "rediss+sentinel://"))

    @classmethod
    def read(cls, url: str) -> GroupUrl:
        """Return what a URL says.

        Raises:
            GroupUrlError: It is no such URL.
        """
        read = _URL.fullmatch(url)
        if read is None:
            raise GroupUrlError("is no URL such as redis+sentinel://user:password@host:26379,host:26379/mymaster/0")
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
    """Return the addresses that a URL lists, with a port for those without.

    Raises:
        GroupUrlError: One is no address, or there twice.
    """
    addresses = [_address(host.strip(), port) for host in hosts.split(",")]
    require_different(addresses)
    return addresses


def require_different(addresses: Sequence[str]) -> None:
    """Check a list of addresses.

    Raises:
        GroupUrlError: There is none, or one twice.
    """
    if not addresses:
        raise GroupUrlError("names no server")
    if len(set(addresses)) < len(addresses):
        raise GroupUrlError("names a server twice: list each once, or one failure would count as several")


def number_of_replicas(options: dict[str, str]) -> int:
    """Take the number of replicas out of a URL's options.

    Raises:
        GroupUrlError: It is none.
    """
    text = options.pop("replicas", "0")
    if not text.isdecimal() or int(text) > _MOST_REPLICAS:
        raise GroupUrlError("has replicas= with something that is no number of replicas")
    return int(text)


def _address(host: str, port: int) -> str:
    read = _HOST.fullmatch(host)
    if read is None or not 0 < int(read[2] or port) < 1 << 16:
        raise GroupUrlError("names a server that is no host:port")
    return f"{read[1]}:{read[2] or port}"
