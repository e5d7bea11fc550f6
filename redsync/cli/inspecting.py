"""The sub-commands that look at a deployment; what each takes, and which function does it."""

from __future__ import annotations

import argparse
import math
import sys
from importlib import import_module
from typing import Any

__all__ = ["add_parsers"]


def add_parsers(subparsers: Any) -> None:
    """Add the inspecting commands; `run`, among the options that they parse, does the work."""
    common = _common_options()

    def add(name: str, module: str, function: str, summary: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = subparsers.add_parser(
            name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.", parents=[common]
        )
        parser.set_defaults(run=_Late(module, function))
        return parser

    add("doctor", "doctor", "doctor", "check every node and how they fit together, and advise")
    ls = add("ls", "listing", "ls", "list locks, semaphores and all else that nodes keep")
    ls.add_argument("pattern", nargs="?", default="*", help="which names, as * ? [a-z] (default: all)")
    show = add("show", "listing", "show", "show what each node knows of one name: who holds it, who waits")
    show.add_argument("name", help="the name, without the prefix")
    break_ = add("break", "listing", "break_", "take a lock or permit away from one owner; who waits for it gets it")
    break_.add_argument("name", help="the name, without the prefix")
    break_.add_argument("--owner", required=True, metavar="ID", help="whose claim to take away, as `show` tells it")
    break_.add_argument("--yes", action="store_true", help="do not ask")
    watch = add("watch", "watching", "watch", "tell of each hold that begins or ends, until Ctrl-C")
    top = add("top", "watching", "top", "show who holds what, drawn anew every moment")
    for parser in (watch, top):
        parser.add_argument("pattern", nargs="?", default="*", help="which names, as * ? [a-z] (default: all)")
        parser.add_argument(
            "--interval", type=_seconds, default=1.0, metavar="SECONDS", help="time between two looks (default: 1)"
        )
    bench = add("bench", "bench", "bench", "measure what a lock costs on these nodes, beside bare sockets")
    bench.add_argument(
        "--seconds", type=_seconds, default=3.0, metavar="SECONDS", help="how long to measure (default: 3)"
    )
    summary = "run throwaway nodes on this machine until Ctrl-C, and print what to export"
    dev = subparsers.add_parser("dev", help=summary, description=f"{summary.capitalize()}.")
    dev.add_argument("-n", "--nodes", type=_count, default=3, metavar="N", help="how many (default: 3)")
    dev.add_argument("--json", action="store_true", help="write JSON to standard output")
    dev.set_defaults(run=_Late("dev", "dev"))


class _Late:
    """Runs a function of a module that is imported only then; what keeps it from beginning becomes a status."""

    def __init__(self, module: str, function: str) -> None:
        self._module, self._function = module, function

    def __call__(self, options: argparse.Namespace) -> int:
        from redsync.cli.asking import SetupError

        try:
            status: int = getattr(import_module(f"redsync.cli.{self._module}"), self._function)(options)
        except SetupError as error:
            print(f"redsync {options.command}: {error}", file=sys.stderr)
            return error.status
        return status


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"must be a positive number of seconds, not {text!r}")
    return seconds


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 on, not {text!r}")
    return int(text)


def _common_options() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--url", action="append", metavar="URL", help="a node; once for each (default: REDSYNC_URLS, comma separated)"
    )
    common.add_argument("--prefix", help="what all keys begin with (default: REDSYNC_PREFIX, or redsync:)")
    common.add_argument(
        "--timeout", type=_seconds, default=1.0, metavar="SECONDS", help="how long a node may be silent (default: 1)"
    )
    common.add_argument("--json", action="store_true", help="write JSON to standard output")
    return common
