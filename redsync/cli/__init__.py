"""The `redsync` command.

Commands come in families; `COMMAND_GROUPS` lists the module of each. Its function `add_parsers(subparsers)` adds a
parser for each command and calls `parser.set_defaults(run=function)`; `function(options) -> int` does the work and
returns the exit status (see `exits`). Slow or optional packages (redis, rich, servers) are imported only inside that
function, so `redsync --help` answers at once, even if no extra is installed. Only the group of the chosen command is
imported, unless all commands are listed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final, NoReturn

from redsync.cli.exits import BROKEN_PIPE, FAILED, INTERRUPTED, USAGE, OutputError, SetupError
from redsync.cli.output import flush, open_streams, put, tell, told_error, warn, write

__all__ = ["COMMAND_GROUPS", "WRAPPING", "main"]

COMMAND_GROUPS: Final = {
    "lock_command": ("lock",),
    "arguments": ("doctor", "ls", "show", "break", "top", "exporter", "dev"),
    "demo": ("demo",),
}
"""The modules that add commands, and the names of their commands."""

WRAPPING: Final = {"lock"}
"""The commands that run another command: `--` ends the arguments that we parse."""


class _Parser(argparse.ArgumentParser):
    """Exits with our own status on wrong arguments, and writes through `output`."""

    def error(self, message: str) -> NoReturn:
        tell(self.format_usage())
        warn(f"{self.prog}: {message}")
        self.exit(USAGE)

    def _print_message(self, message: str, _: object = None) -> None:
        # argparse calls this only for help. Its own method ignores a full disk.
        write(message)


class _Version(argparse.Action):
    """Prints the version, read only on request: the metadata costs more than all other options together."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from importlib.metadata import version

        put(f"redsync {version('redsync-toolkit')}")
        parser.exit()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command, by default with the arguments of this process, and return its exit status.

    Raises:
        SystemExit: The arguments were wrong (status 64), or asked for help or the version (status 0).
    """
    if argv is None:
        open_streams()
    try:
        try:
            return _run(_parse(list(sys.argv[1:] if argv is None else argv)))
        finally:
            # Otherwise the interpreter flushes at its exit, and a failure there overrides our status.
            flush()
    except OutputError as error:
        # The reader may have closed our output (`redsync demo | head`): not worth a message.
        if error.status != BROKEN_PIPE:
            warn(f"redsync: {error}")
        return error.status


def _run(options: argparse.Namespace) -> int:
    try:
        status: int = options.run(options)
    except OutputError:  # for `main`
        raise
    except SetupError as error:
        warn(*f"redsync {options.command}: {error}".split("\n"))
        return error.status
    except KeyboardInterrupt:
        warn(f"redsync {options.command}: interrupted")
        return INTERRUPTED
    except Exception as error:
        warn(*told_error(error), f"redsync {options.command}: internal error in redsync: please report it")
        return FAILED
    return status


def _parse(arguments: list[str]) -> argparse.Namespace:
    # No option before the command takes a value, so the first word that is not an option is the command.
    chosen = next((argument for argument in arguments if not argument.startswith("-")), None)
    wrapped: list[str] = []
    if chosen in WRAPPING and "--" in arguments:
        end = arguments.index("--")
        arguments, wrapped = arguments[:end], arguments[end + 1 :]
    options = _parser(chosen).parse_args(arguments)
    options.wrapped = wrapped
    return options


def _parser(chosen: str | None) -> argparse.ArgumentParser:
    """Return a parser for the chosen command and its group, or for all commands if the chosen one is unknown."""
    parser = _Parser(
        prog="redsync",
        description="Run commands under distributed locks on independent Redis masters, and inspect these locks.",
    )
    parser.add_argument(
        "--version", action=_Version, nargs=0, default=argparse.SUPPRESS, help="show the version and exit"
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands", required=True)
    known = [command_group for command_group, names in COMMAND_GROUPS.items() if chosen in names]
    for command_group in known or COMMAND_GROUPS:
        import_module(f"redsync.cli.{command_group}").add_parsers(commands)
    return parser
