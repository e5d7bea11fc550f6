"""Where a command's nodes come from: its `--url` options, or `REDSYNC_URLS`."""

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
"""Schemes of URLs with several hosts and ports, which are read elsewhere."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which nodes to use."""
    group = parser.add_argument_group("nodes")
    group.add_argument(
        "--url",
        action="append",
        default=[],
        metavar="URL",
        dest="urls",
        help="a node; once for each (default: REDSYNC_URLS, separated by commas)",
    )
    group.add_argument("--prefix", help="what the names of all keys begin with (default: REDSYNC_PREFIX, or redsync:)")


def urls_of(options: argparse.Namespace) -> list[str]:
    """Return the URLs that the options name, else the environment.

    Raises:
        SetupError: There is none, or one is not valid.
    """
    urls = [url.strip() for url in options.urls or split_urls(os.environ.get("REDSYNC_URLS", "")) if url.strip()]
    if not urls:
        raise SetupError(
            "no nodes are configured: name them with --url, or in REDSYNC_URLS, separated by commas", UNCONFIGURED
        )
    for number, url in enumerate(urls, 1):
        if "://" in url.partition(",")[2]:
            # redis-py would take the first, and ignore the rest.
            raise SetupError(f"node {number} is several URLs: give --url once for each", UNCONFIGURED)
        if not _is_url(url):
            raise SetupError(no_url(number), UNCONFIGURED)
    return urls


def no_url(number: int) -> str:
    """Return a sentence about an invalid URL. It does not show the URL, which may have a password."""
    return f"node {number} is no URL such as redis://:password@host:6379/0"


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in _SEVERAL_HOSTS or (parts.scheme in _SCHEMES and parts.port != 0)
    except ValueError:
        return False


def prefix_of(options: argparse.Namespace) -> str:
    """Return what the names of all keys begin with."""
    prefix: str = os.environ.get("REDSYNC_PREFIX", "redsync:") if options.prefix is None else options.prefix
    return prefix


def connect(options: argparse.Namespace, **settings: Any) -> Client:
    """Return a client of the nodes that the options name, else the environment.

    Args:
        options: What `add_arguments` has asked for.
        **settings: As for `Client`; None leaves it to the environment.

    Raises:
        SetupError: No nodes are named, or a URL is not valid.
        ConfigurationError: Settings contradict each other.
    """
    urls = urls_of(options)
    from redsync.client import Client

    given = {name: value for name, value in settings.items() if value is not None}
    return Client.from_env(urls, prefix=prefix_of(options), **given)
