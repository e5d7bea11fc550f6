"""The commands that inspect a deployment: their arguments, and the functions that run them."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib import import_module
from typing import Any

from redsync.cli import nodes
from redsync.cli.arguments import add_json, address, name, seconds, whole

__all__ = ["add_parsers"]


def add_parsers(subparsers: Any) -> None:
    """Add the inspecting commands; each parser sets `run` to the function that does the work."""
    doctor = _add(subparsers, "doctor", "doctor", "doctor", "check each node and the deployment, and advise")
    doctor.epilog = "Exit status: 0 all is well, 1 something needs attention, 69 too few nodes answer."
    ls = _add(subparsers, "ls", "listing", "ls", "list locks, semaphores and everything else on the nodes")
    _add_pattern(ls, None)
    show = _add(subparsers, "show", "showing", "show", "show each node's view of one name: holders and waiters")
    _add_name(show)
    show.epilog = "Exit status: 0 held or free, 69 too few nodes answer."
    summary = "force-release one owner's lock or permit, for the next waiter"
    take_away = _add(subparsers, "break", "breaking", "take_away", summary)
    _add_name(take_away)
    take_away.add_argument("--owner", required=True, metavar="ID", help="the owner's id, as printed by `redsync show`")
    take_away.add_argument("--yes", action="store_true", help="do not ask for confirmation")
    take_away.epilog = "Exit status: 0 released, 1 not held by that owner, or not confirmed."
    for command, summary in (
        ("watch", "print each change of holds, waiters and nodes, until Ctrl-C"),
        ("top", "show holders and waiters continuously, until q or Ctrl-C"),
    ):
        parser = _add(subparsers, command, "watching" if command == "watch" else "top", command, summary)
        _add_pattern(parser, 1000)
        parser.add_argument(
            "--interval", type=seconds(), default=1.0, metavar="SECONDS", help="time between refreshes (default: 1)"
        )
    _add_exporter(subparsers)
    bench = _add(subparsers, "bench", "bench", "bench", "measure the cost of a lock on these nodes and on bare sockets")
    bench.add_argument(
        "--seconds", type=seconds(), default=3.0, metavar="SECONDS", help="how long to measure (default: 3)"
    )
    _add_dev(subparsers)


def _add(
    subparsers: Any, command: str, module: str, function: str, summary: str, *, with_json: bool = True
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        command, help=summary, description=f"{summary[0].upper()}{summary[1:]}."
    )
    parser.set_defaults(run=_late(module, function))
    nodes.add_arguments(parser)
    parser.add_argument(
        "--timeout", type=seconds(), default=1.0, metavar="SECONDS", help="how long to wait for a node (default: 1)"
    )
    if with_json:
        add_json(parser)
    return parser


def _add_exporter(subparsers: Any) -> None:
    summary = "export the nodes' state to Prometheus, until SIGTERM or Ctrl-C"
    parser = _add(subparsers, "exporter", "exporter", "exporter", summary, with_json=False)
    _add_pattern(parser, 10_000)
    parser.add_argument(
        "--listen",
        type=address,
        default=("127.0.0.1", 9465),
        metavar="HOST:PORT",
        help="address to serve on (default: 127.0.0.1:9465; port 0 picks a free port)",
    )
    parser.add_argument(
        "--interval", type=seconds(), default=5.0, metavar="SECONDS", help="time between refreshes (default: 5)"
    )


def _add_dev(subparsers: Any) -> None:
    summary = "run throwaway local nodes until Ctrl-C; print what to export"
    dev = subparsers.add_parser("dev", help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
    dev.add_argument("-n", "--nodes", type=whole(1), default=3, metavar="N", help="number of nodes (default: 3)")
    add_json(dev)
    dev.set_defaults(run=_late("dev", "dev"))


def _add_pattern(parser: argparse.ArgumentParser, limit: int | None) -> None:
    parser.add_argument(
        "pattern", nargs="?", default="*", metavar="PATTERN", help="pattern of names, with * ? [a-z] (default: all)"
    )
    default = "no limit" if limit is None else f"{limit:,}"
    parser.add_argument(
        "--limit", type=whole(1), default=limit, metavar="N", help=f"the most names to query (default: {default})"
    )


def _add_name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", type=name, metavar="NAME", help="the name, without the prefix")


def _late(module: str, function: str) -> Callable[[argparse.Namespace], int]:
    """Return a function that imports a module and calls a function of it."""

    def run(options: argparse.Namespace) -> int:
        status: int = getattr(import_module(f"redsync.cli.{module}"), function)(options)
        return status

    return run
