"""Arguments that several commands share: names, checked numbers, addresses, and the nodes.

The second half has all arguments of the commands that inspect a deployment, and loads the functions that run them.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from redsync._core.keys import encode_name
from redsync._core.text import split_urls
from redsync._core.urls import NodeUrlError, check_url
from redsync.cli.exits import UNCONFIGURED, SetupError

if TYPE_CHECKING:
    from redsync import Client

__all__ = [
    "add_nodes",
    "add_parsers",
    "address",
    "connect",
    "encoded",
    "name",
    "name_of",
    "prefix_of",
    "seconds",
    "urls_of",
    "whole",
]


def encoded(text: str) -> bytes:
    """Return a word of the command line as the bytes that the user typed."""
    return text.encode("utf-8", "surrogateescape")


def name(text: str) -> str:
    """Return a name of the command line unchanged, if it is as long as a name may be."""
    try:
        encode_name(encoded(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def name_of(text: str) -> str | bytes:
    """Return a name of the command line for the library: text, or bytes if it is not valid text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return encoded(text)
    return text


def address(text: str) -> tuple[str, int]:
    """Return host and port of `HOST:PORT`; brackets enclose an IPv6 address."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    if not (host and colon and port.isascii() and port.isdigit() and int(port) < 65536):
        raise argparse.ArgumentTypeError(f"must be HOST:PORT, such as 127.0.0.1:9465 or [::1]:9465, not {text!r}")
    return host, int(port)


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """Return a function that parses a whole number in that range."""
    allowed = f"of {least} or more" if most is None else f"from {least} to {most:,}"

    def read(text: str) -> int:
        number = int(text) if text.isascii() and text.isdigit() else None
        if number is None or number < least or (most is not None and number > most):
            raise argparse.ArgumentTypeError(f"must be a whole number {allowed}, not {text!r}")
        return number

    return read


def seconds(least: float | None = None, most: float = math.inf) -> Callable[[str], float]:
    """Return a function that parses a time in seconds, at least `least` (None: any above 0) and at most `most`."""
    if least is None:
        allowed = "a positive number of seconds"
    elif most < math.inf:
        allowed = f"a number of seconds from {least:g} to {most:,.0f}"
    else:
        allowed = "a number of seconds"

    def read(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        longer = number > 0 if least is None else number >= least
        if not (longer and number <= most and math.isfinite(number)):
            raise argparse.ArgumentTypeError(f"must be {allowed}, not {text!r}")
        return number

    return read


_SEVERAL_HOSTS: Final = ("redis+sentinel:", "rediss+sentinel:", "redis+cluster:", "rediss+cluster:")
"""Schemes of URLs with several hosts and ports, parsed elsewhere."""


def add_nodes(parser: argparse.ArgumentParser) -> None:
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


# The commands that inspect a deployment.


def add_parsers(subparsers: Any) -> None:
    """Add the inspecting commands; each parser sets `run` to the function that does the work."""

    def add(command: str, module: str, summary: str, *parents: argparse.ArgumentParser) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = subparsers.add_parser(
            command, help=summary, description=f"{summary[0].upper()}{summary[1:]}.", parents=parents
        )
        parser.set_defaults(run=_late(module, "take_away" if command == "break" else command))
        return parser

    json, nodes = _options(), _options()
    json.add_argument("--json", action="store_true", help="write JSON to standard output")
    add_nodes(nodes)
    nodes.add_argument(
        "--timeout", type=seconds(), default=1.0, metavar="SECONDS", help="how long to wait for a node (default: 1)"
    )
    named = _options()
    named.add_argument("name", type=name, metavar="NAME", help="the name, without the prefix")

    doctor = add("doctor", "doctor", "check each node and the deployment, and advise", nodes, json)
    doctor.epilog = "Exit status: 0 all is well, 1 something needs attention, 69 too few nodes answer."
    add("ls", "listing", "list locks, semaphores and everything else on the nodes", nodes, json, _matching(1000))
    show = add("show", "listing", "show each node's view of one name: holders and waiters", nodes, json, named)
    show.epilog = "Exit status: 0 held or free, 69 too few nodes answer."
    take_away = add(
        "break", "listing", "force-release one owner's lock or permit, for the next waiter", nodes, json, named
    )
    take_away.add_argument("--owner", required=True, metavar="ID", help="the owner's id, as printed by `redsync show`")
    take_away.add_argument("--yes", action="store_true", help="do not ask for confirmation")
    take_away.epilog = "Exit status: 0 released, 1 not held by that owner, or not confirmed."
    top = add("top", "top", "show holders and waiters continuously, until q or Ctrl-C", nodes, _matching(1000))
    _add_interval(top, 1.0)
    summary = "export the nodes' state to Prometheus, until SIGTERM or Ctrl-C"
    exporter = add("exporter", "exporter", summary, nodes, _matching(10_000))
    exporter.add_argument(
        "--listen",
        type=address,
        default=("127.0.0.1", 9465),
        metavar="HOST:PORT",
        help="address to serve on (default: 127.0.0.1:9465; port 0 picks a free port)",
    )
    _add_interval(exporter, 5.0)
    dev = add("dev", "dev", "run throwaway local nodes until Ctrl-C; print what to export", json)
    dev.add_argument("-n", "--nodes", type=whole(1), default=3, metavar="N", help="number of nodes (default: 3)")


def _options() -> argparse.ArgumentParser:
    """Return an empty set of options that several commands share."""
    return argparse.ArgumentParser(add_help=False)


def _matching(limit: int) -> argparse.ArgumentParser:
    options = _options()
    options.add_argument(
        "pattern", nargs="?", default="*", metavar="PATTERN", help="pattern of names, with * ? [a-z] (default: all)"
    )
    options.add_argument(
        "--limit", type=whole(1), default=limit, metavar="N", help=f"the most names to query (default: {limit:,})"
    )
    return options


def _add_interval(parser: argparse.ArgumentParser, default: float) -> None:
    parser.add_argument(
        "--interval",
        type=seconds(),
        default=default,
        metavar="SECONDS",
        help=f"time between refreshes (default: {default:g})",
    )


def _late(module: str, function: str) -> Callable[[argparse.Namespace], int]:
    """Return a function that imports a module and calls a function of it."""

    def run(options: argparse.Namespace) -> int:
        status: int = getattr(import_module(f"redsync.cli.{module}"), function)(options)
        return status

    return run
