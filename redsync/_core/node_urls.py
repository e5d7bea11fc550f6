"""URLs of single nodes: what redis-py would silently read otherwise than it was meant.

In a password, an unquoted `#`, `/` or `?` ends the address. redis-py then connects to another server, without the
password: `redis://:28885#rest@10.0.0.1/0` leads to localhost, port 28885. It also takes a database that is not a number
for database 0. Locks would be granted there.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit

__all__ = ["NodeUrlError", "check_url"]

_DATABASE: Final = re.compile(r"/?|/[0-9]+/?")
_LIKE: Final = "something like redis://:password@host:6379/0"
_QUOTED: Final = "in a user or password, write %23 for #, %2F for / and %3F for ?"


class NodeUrlError(ValueError):
    """Invalid URL of a node, a Sentinel group or a cluster; the text says what is wrong, and shows nothing of it."""


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
