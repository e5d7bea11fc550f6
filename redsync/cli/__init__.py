"""The `redsync` command.

Each sub-command is one module of this package, listed in `COMMANDS`. Such a module has two functions,

- `configure(parser)`, which adds the command's arguments, and
- `run(options) -> int`, which does the work and returns the exit status,

and imports what is slow or optional (redis, rich, servers) only inside `run`: `redsync --help` must answer at once, and
also where no extra is installed. Only the module of the chosen command is imported at all.

Exit statuses: 0 success, 1 the command found something wrong, 2 wrong usage, 69 something it needs is not installed or
does not start, 130 interrupted by Ctrl-C.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final

from redsync.cli.inspecting import add_parsers

__all__ = ["COMMANDS", "main"]

COMMANDS: Final = {
    "demo": "watch processes fight over locks while nodes fail, and check every acquisition",
}
"""The sub-commands: each is the name of its module, with the line that `redsync --help` says about it."""

INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 141


class _Version(argparse.Action):
    """Prints the version; a class of its own, as reading the metadata costs more than all other options together."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from importlib.metadata import version

        print(f"redsync {version('redsync-toolkit')}")
        parser.exit()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status.

    Args:
        argv: The arguments without the program's name; None for those of this process.

    Raises:
        SystemExit: The arguments were wrong (status 2), or asked for help or the version (status 0).
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    options = _parse(arguments)
    try:
        run = getattr(options, "run", None) or _module(options.command).run
        status: int = run(options)
        sys.stdout.flush()
    except KeyboardInterrupt:
        print(f"redsync {options.command}: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has ended (`redsync demo | head`). The interpreter flushes once more when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    return status


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="redsync", description="Distributed locks over independent Redis masters: tools to try and to watch them."
    )
    parser.add_argument(
        "--version", action=_Version, nargs=0, default=argparse.SUPPRESS, help="show the version and exit"
    )
    commands = parser.add_subparsers(dest="command", metavar="command", required=True)
    # No option before the command takes a value, so the first word that is no option is the command.
    chosen = next((argument for argument in arguments if not argument.startswith("-")), None)
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=f"{summary.capitalize()}.")
        if name == chosen:
            _module(name).configure(command)
    add_parsers(commands)
    return parser.parse_args(arguments)


def _module(command: str) -> Any:
    return import_module(f"redsync.cli.{command}")
