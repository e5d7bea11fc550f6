"""The `redsync` command: `arguments` has its arguments, `exits` its exit statuses, `output` is its only way out."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from redsync.cli.arguments import COMMANDS, parse
from redsync.cli.exits import BROKEN_PIPE, FAILED, INTERRUPTED, UNAVAILABLE, OutputError, SetupError
from redsync.cli.output import open_streams, told_error, warn

EXTRAS = {"rich": "cli", "prometheus_client": "prometheus"}
"""For each optional package the extra that installs it."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command, by default with the arguments of this process, and return its exit status.

    Raises:
        SystemExit: The arguments were wrong (status 64), or asked for help or the version (status 0).
    """
    if argv is None:
        open_streams()
    try:
        return _run(parse(list(sys.argv[1:] if argv is None else argv)))
    except OutputError as error:
        # The reader may have closed our output (`redsync demo | head`): not worth a message.
        if error.status != BROKEN_PIPE:
            warn(f"redsync: {error}")
        return error.status


def _run(options: argparse.Namespace) -> int:
    module, function = COMMANDS[options.command].split(".")
    try:
        status: int = getattr(import_module(f"redsync.cli.{module}"), function)(options)
    except OutputError:  # for `main`
        raise
    except SetupError as error:
        warn(*f"redsync {options.command}: {error}".split("\n"))
        return error.status
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        warn(f'redsync {options.command}: needs {package}: pip install "redsync-toolkit[{EXTRAS[package]}]"')
        return UNAVAILABLE
    except KeyboardInterrupt:
        warn(f"redsync {options.command}: interrupted")
        return INTERRUPTED
    except Exception as error:
        warn(*told_error(error), f"redsync {options.command}: internal error in redsync: please report it")
        return FAILED
    return status
