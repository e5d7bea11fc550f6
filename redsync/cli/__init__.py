"""The `redsync` command: `arguments` has its arguments, `exits` its exit statuses, `output` is its only way out."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from redsync.cli.arguments import COMMANDS, parse
from redsync.cli.exits import BROKEN_PIPE, FAILED, INTERRUPTED, UNAVAILABLE, SetupError, status_of
from redsync.cli.output import open_streams, warn
from redsync.exceptions import RedsyncError

EXTRAS = {"rich": "cli", "shtab": "cli", "prometheus_client": "prometheus"}
"""For each optional package the extra that installs it."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command, by default with the arguments of this process, and return its exit status.

    Raises:
        SystemExit: The arguments were wrong (status 64), or asked for help or the version (status 0).
    """
    if argv is None:
        open_streams()
    ours = "redsync"
    try:
        options = parse(list(sys.argv[1:] if argv is None else argv))
        ours = f"redsync {options.command}"
        module, function = COMMANDS[options.command].split(".")
        status: int = getattr(import_module(f"redsync.cli.{module}"), function)(options)
    except SetupError as error:
        # The reader may have closed our output (`redsync demo | head`): not worth a message.
        if error.status != BROKEN_PIPE:
            warn(*f"{ours}: {error}".split("\n"))
        return error.status
    except (RedsyncError, OSError) as error:
        warn(f"{ours}: {error}")
        return status_of(error)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        warn(f'{ours}: needs {package}: pip install "redsync-toolkit[{EXTRAS[package]}]"')
        return UNAVAILABLE
    except KeyboardInterrupt:
        warn(f"{ours}: interrupted")
        return INTERRUPTED
    except Exception as error:
        from traceback import format_exception

        told = "".join(format_exception(error)).rstrip().split("\n")
        warn(*told, f"{ours}: internal error in redsync: please report it")
        return FAILED
    return status
