"""A command's nodes: from its `--url` options, or from `REDSYNC_URLS`."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from redsync._core.text import split_urls
from redsync.cli.exits import UNCONFIGURED, SetupError

if TYPE_CHECKING:
    from redsync import Client

__all__ = ["add_arguments", "connect", "no_url", "prefix_of", "urls_of"]

_SCHEMES: Final = ("redis", "rediss", "unix")
_SEVERAL_HOSTS: Final = ("redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster")
"""Schemes of URLs with several hosts and ports, parsed elsewhere."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose the nodes."""
    group = parser.add_argument_group("nodes")
    group.add_argument(
        "--url",
        action="append",
        default=[],
        metavar="URL",
        dest="urls",
        help="a node's URL; repeat for each node (default: REDSYNC_URLS, separated by commas)",
    )
    group.add_argument("--prefix", help="prefix of all keys (default: REDSYNC_PREFIX, or redsync:)")


def urls_of(options: argparse.Namespace) -> list[str]:
    """Return the URLs from the options, or else from the environment.

    Raises:
        SetupError: There is none, or one is not valid.
    """
    urls = [url.strip() for url in options.urls or split_urls(os.environ.get("REDSYNC_URLS", "")) if url.strip()]
    if not urls:
        raise SetupError(
            "no nodes configured: give --url for each node, or list them in REDSYNC_URLS, separated by commas",
            UNCONFIGURED,
        )
    for number, url in enumerate(urls, 1):
        if "://" in url.partition(",")[2]:
            # redis-py would use the first and ignore the rest.
            raise SetupError(f"node {number} has several URLs: give --url once for each", UNCONFIGURED)
        if not _is_url(url):
            raise SetupError(no_url(number), UNCONFIGURED)
    return urls


def no_url(number: int) -> str:
    """Return the message about an invalid URL. It does not show the URL, which may contain a password."""
    return f"node {number} is not a valid URL; expected something like redis://:password@host:6379/0"


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in _SEVERAL_HOSTS or (parts.scheme in _SCHEMES and parts.port != 0)
    except ValueError:
        return False


def prefix_of(options: argparse.Namespace) -> str:
    """Return the prefix of all keys."""
    prefix: str = os.environ.get("REDSYNC_PREFIX", "redsync:") if options.prefix is None else options.prefix
    return prefix


def connect(options: argparse.Namespace, **settings: Any) -> Client:
    """Return a client of the nodes from the options, or else from the environment, with settings that are not None.

    Raises:
        SetupError: There are no URLs, or one is not valid.
        ConfigurationError: Settings contradict each other.
    """
    urls = urls_of(options)
    from redsync.client import Client

    given = {name: value for name, value in settings.items() if value is not None}
    return Client.from_env(urls, prefix=prefix_of(options), **given)
