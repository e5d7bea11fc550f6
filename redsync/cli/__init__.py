"""The `redsync` command.

Commands come in families; `FAMILIES` lists the module of each. Its function `add_parsers(subparsers)` adds a parser for
each command and calls `parser.set_defaults(run=function)`; `function(options) -> int` does the work and returns the
exit status (see `exits`). Slow or optional packages (redis, rich, servers) are imported only inside that function, so
`redsync --help` answers at once, even if no extra is installed. Only the family of the chosen command is imported,
unless all commands are listed.
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
    "inspecting": ("doctor", "ls", "show", "break", "watch", "top", "exporter", "bench", "dev"),
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

    def format_help(self) -> str:
        """Return the help, without argparse's line for the group of all commands."""
        return super().format_help().replace("\n  command\n", "\n")

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
        # This process is ours alone. What it loads stays until it ends; garbage collection would take a tenth of the
        # start-up time.
        gc.set_threshold(20_000, 10, 10)
        open_streams()
        take_over()
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
    """Return a parser for the chosen command and its family, or for all commands if the chosen one is unknown."""
    parser = _Parser(
        prog="redsync",
        description="Run commands under distributed locks on independent Redis masters, and inspect these locks.",
    )
    parser.add_argument(
        "--version", action=_Version, nargs=0, default=argparse.SUPPRESS, help="show the version and exit"
    )
    commands = parser.add_subparsers(dest="command", metavar="command", title="commands", required=True)
    known = [family for family, names in FAMILIES.items() if chosen in names]
    for family in known or FAMILIES:
        import_module(f"redsync.cli.{family}").add_parsers(commands)
    return parser
