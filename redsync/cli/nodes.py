"""A command's nodes: from its `--url` options, or from `REDSYNC_URLS`."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any, Final

from redsync._core.node_urls import NodeUrlError, check_url
from redsync._core.text import split_urls
from redsync.cli.exits import UNCONFIGURED, SetupError

if TYPE_CHECKING:
    from redsync import Client

__all__ = ["add_arguments", "connect", "prefix_of", "urls_of"]

_SEVERAL_HOSTS: Final = ("redis+sentinel:", "rediss+sentinel:", "redis+cluster:", "rediss+cluster:")
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
        if not url.startswith(_SEVERAL_HOSTS):
            try:
                check_url(url)
            except NodeUrlError as error:
                raise SetupError(f"node {number} {error}", UNCONFIGURED) from None
    return urls


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
