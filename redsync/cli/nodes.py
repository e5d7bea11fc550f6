"""Where a command's nodes come from: its `--url` options, or `REDSYNC_URLS`."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

from redsync.exceptions import ConfigurationError

if TYPE_CHECKING:
    from redsync import Client

__all__ = ["add_arguments", "connect"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which nodes to use."""
    parser.add_argument(
        "--url",
        action="append",
        default=[],
        metavar="URL",
        dest="urls",
        help="a node; give it once for each (REDSYNC_URLS, separated by commas)",
    )
    parser.add_argument("--prefix", help="what the names of all keys begin with (REDSYNC_PREFIX, else redsync:)")


def connect(options: argparse.Namespace, **settings: Any) -> Client:
    """Return a client of the nodes that the options name, else the environment.

    Args:
        options: What `add_arguments` has asked for.
        **settings: As for `Client`; None leaves it to the environment.

    Raises:
        ConfigurationError: No nodes are named, or settings contradict each other.
    """
    if not options.urls and not os.environ.get("REDSYNC_URLS", "").strip(", "):
        raise ConfigurationError(
            "no nodes are configured: name them with --url, or in REDSYNC_URLS, separated by commas"
        )
    from redsync.client import Client

    given = {"prefix": options.prefix, **settings}
    return Client.from_env(options.urls, **{name: value for name, value in given.items() if value is not None})
