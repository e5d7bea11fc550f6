"""The `redsync` command.

Commands come in families, each a module of this package that is listed in `FAMILIES`. Such a module has a function
`add_parsers(subparsers)`, which adds a parser for each of its commands and gives it what to run:
`parser.set_defaults(run=function)`, where `function(options) -> int` does the work and returns the exit status (see
`exits`). It imports slow or optional packages (redis, rich, servers) only inside that function, because the help of
`redsync` must answer at once, even if no extra is installed. Only the family of the chosen command is imported, unless
all commands are to be listed.
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final, NoReturn

from redsync.cli.exits import BROKEN_PIPE, FAILED, INTERRUPTED, USAGE, OutputError, SetupError
from redsync.cli.output import flush, open_streams, put, take_over, tell, told_error, warn, write

__all__ = ["FAMILIES", "WRAPPING", "main"]

FAMILIES: Final = {
    "lock_command": ("lock",),
    "inspecting": ("doctor", "ls", "show", "break", "watch", "top", "bench", "dev"),
    "demo": ("demo",),
}
"""The modules that add commands, with the names of these."""

WRAPPING: Final = {"lock"}
"""The commands that run another command: what follows `--` is its command line, which we do not parse."""


class _Parser(argparse.ArgumentParser):
    """Ends with our own status if the arguments are wrong, and writes like all commands."""

    def error(self, message: str) -> NoReturn:
        tell(self.format_usage())
        warn(f"{self.prog}: {message}")
        self.exit(USAGE)

    def _print_message(self, message: str, _: object = None) -> None:
        # Only help comes here. argparse's own method ignores a full disk.
        write(message)


class _Version(argparse.Action):
    """Prints the version; a separate class, because reading the metadata costs more than all other options together."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from importlib.metadata import version

        put(f"redsync {version('redsync-toolkit')}")
        parser.exit()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status.

    Args:
        argv: The arguments without the program's name; None for those of this process.

    Raises:
        SystemExit: The arguments were wrong (status 64), or asked for help or the version (status 0).
    """
    if argv is None:
        # A process of our own. What it loads stays to the end; collecting garbage there would take a tenth of the
        # start.
        gc.set_threshold(20_000, 10, 10)
        open_streams()
        take_over()
    try:
        try:
            return _run(_parse(list(sys.argv[1:] if argv is None else argv)))
        finally:
            # The interpreter would flush at its exit, and end with its own status.
            flush()
    except OutputError as error:
        # The reader of our output may have ended (`redsync demo | head`), which is no error to report.
        if error.status != BROKEN_PIPE:
            warn(f"redsync: {error}")
        return error.status


def _run(options: argparse.Namespace) -> int:
    try:
        status: int = options.run(options)
    except OutputError:  # `main` deals with it
        raise
    except SetupError as error:
        warn(*f"redsync {options.command}: {error}".split("\n"))
        return error.status
    except KeyboardInterrupt:
        warn(f"redsync {options.command}: interrupted")
        return INTERRUPTED
    except Exception as error:
        warn(*told_error(error), f"redsync {options.command}: failed, which is a mistake of ours: please report it")
        return FAILED
    return status


def _parse(arguments: list[str]) -> argparse.Namespace:
    # No option before the command takes a value, so the first word that is no option is the command.
    chosen = next((argument for argument in arguments if not argument.startswith("-")), None)
    wrapped: list[str] = []
    if chosen in WRAPPING and "--" in arguments:
        end = arguments.index("--")
        arguments, wrapped = arguments[:end], arguments[end + 1 :]
    options = _parser(chosen).parse_args(arguments)
    options.wrapped = wrapped
    return options


def _parser(chosen: str | None) -> argparse.ArgumentParser:
    """Return a parser of the chosen command, and of those of its family; of all if there is no such command."""
    parser = _Parser(
        prog="redsync",
        description="Distributed locks over independent Redis masters: tools to use, try and watch them.",
    )
    parser.add_argument(
        "--version", action=_Version, nargs=0, default=argparse.SUPPRESS, help="show the version and exit"
    )
    commands = parser.add_subparsers(dest="command", metavar="command", required=True)
    known = [family for family, names in FAMILIES.items() if chosen in names]
    for family in known or FAMILIES:
        import_module(f"redsync.cli.{family}").add_parsers(commands)
    return parser
