"""The commands that look at a deployment: the arguments of each, and the function that does it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib import import_module
from typing import Any

from redsync.cli import nodes
from redsync.cli.arguments import add_json, seconds, whole

__all__ = ["add_parsers"]


def add_parsers(subparsers: Any) -> None:
    """Add the inspecting commands; `run`, among the options that they parse, does the work."""
    doctor = _add(subparsers, "doctor", "doctor", "doctor", "check every node and how they fit together, and advise")
    doctor.epilog = "Exit status: 0 all is well, 1 something needs attention, 69 too few nodes answer."
    ls = _add(subparsers, "ls", "listing", "ls", "list locks, semaphores and all else that nodes keep")
    _add_pattern(ls, None)
    show = _add(subparsers, "show", "showing", "show", "show what each node knows of one name: who holds it, who waits")
    _add_name(show)
    show.epilog = "Exit status: 0 whether anybody holds it or not; 69 if too few nodes answer."
    summary = "take a lock or permit away from one owner; who waits for it gets it"
    take_away = _add(subparsers, "break", "breaking", "take_away", summary)
    _add_name(take_away)
    take_away.add_argument("--owner", required=True, metavar="ID", help="whose claim to take away, as `show` tells it")
    take_away.add_argument("--yes", action="store_true", help="do not ask")
    take_away.epilog = "Exit status: 0 taken away, 1 that owner does not hold it, or nothing was to be changed."
    for name, summary in (
        ("watch", "tell of each hold that begins or ends, until Ctrl-C"),
        ("top", "show who holds what, drawn anew every moment, until q or Ctrl-C"),
    ):
        parser = _add(subparsers, name, "watching" if name == "watch" else "top", name, summary)
        _add_pattern(parser, 1000)
        parser.add_argument(
            "--interval", type=seconds(), default=1.0, metavar="SECONDS", help="time between two looks (default: 1)"
        )
    bench = _add(subparsers, "bench", "bench", "bench", "measure what a lock costs on these nodes, beside bare sockets")
    bench.add_argument(
        "--seconds", type=seconds(), default=3.0, metavar="SECONDS", help="how long to measure (default: 3)"
    )
    _add_dev(subparsers)


def _add(subparsers: Any, name: str, module: str, function: str, summary: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        name, help=summary, description=f"{summary[0].upper()}{summary[1:]}."
    )
    parser.set_defaults(run=_late(module, function))
    nodes.add_arguments(parser)
    parser.add_argument(
        "--timeout", type=seconds(), default=1.0, metavar="SECONDS", help="how long a node may be silent (default: 1)"
    )
    add_json(parser)
    return parser


def _add_dev(subparsers: Any) -> None:
    summary = "run throwaway nodes on this machine until Ctrl-C, and print what to export"
    dev = subparsers.add_parser("dev", help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
    dev.add_argument("-n", "--nodes", type=whole(1), default=3, metavar="N", help="how many (default: 3)")
    add_json(dev)
    dev.set_defaults(run=_late("dev", "dev"))


def _add_pattern(parser: argparse.ArgumentParser, limit: int | None) -> None:
    parser.add_argument(
        "pattern", nargs="?", default="*", metavar="PATTERN", help="which names, as * ? [a-z] (default: all)"
    )
    default = "no limit" if limit is None else f"{limit:,}"
    parser.add_argument(
        "--limit", type=whole(1), default=limit, metavar="N", help=f"how many names at most (default: {default})"
    )


def _add_name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the name, without the prefix")


def _late(module: str, function: str) -> Callable[[argparse.Namespace], int]:
    """Return a function that imports a module and runs a function of it."""

    def run(options: argparse.Namespace) -> int:
        status: int = getattr(import_module(f"redsync.cli.{module}"), function)(options)
        return status

    return run
