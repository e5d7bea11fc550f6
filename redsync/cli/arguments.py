"""The arguments of all commands, and what they name: checked numbers, addresses, names, the nodes.

Only the module of the chosen command is imported, and only to run it: slow or optional packages (redis, rich, servers)
cost the other commands nothing, and `redsync --help` answers at once, even if no extra is installed.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final, NoReturn, TypeVar
from urllib.parse import urlsplit

from redsync import __version__
from redsync._core.text import split_urls
from redsync.cli.exits import BUSY, UNCONFIGURED, USAGE, SetupError
from redsync.cli.output import put, tell, warn, write

T = TypeVar("T")

COMMANDS: Final = {
    "lock": "lock_command.run",
    "doctor": "doctor.doctor",
    "ls": "listing.ls",
    "show": "listing.show",
    "break": "listing.take_away",
    "top": "listing.top",
    "exporter": "exporter.exporter",
    "dev": "dev.dev",
    "demo": "demo.run",
}
"""For each command the module and the function that run it: `function(options)` returns the exit status."""


class _Parser(argparse.ArgumentParser):
    """Exits with our own status on wrong arguments, and writes through `output`."""

    def __init__(self, **settings: Any) -> None:
        # Abbreviations would also be looked for among the words of a wrapped command.
        super().__init__(allow_abbrev=False, **settings)
        self.color = False  # since Python 3.14, it would decide by standard output, not by where we write

    def format_help(self) -> str:
        return f"{super().format_help()}\n{_DOCS}\n"

    def error(self, message: str) -> NoReturn:
        tell(self.format_usage())
        warn(f"{self.prog}: {message}")
        self.exit(USAGE)

    def _print_message(self, message: str, _: object = None) -> None:
        # argparse calls this only for help and version. Its own method ignores a full disk.
        write(message)


class _Completion(argparse.Action):
    """Prints a shell's completion."""

    def __call__(self, parser: argparse.ArgumentParser, _: Any, shell: Any, *__: Any) -> None:
        import shtab

        put(*shtab.complete(parser, shell).splitlines())
        parser.exit()


def parse(arguments: list[str]) -> argparse.Namespace:
    """Return the options that the arguments give.

    The command of `redsync lock` begins with the first word after the name that is not an option, or after a `--`.

    Raises:
        SystemExit: The arguments were wrong (status 64), or asked for help or the version (status 0).
    """
    # No option before `lock` takes a value, but for `--completion`, which ends this program.
    is_lock = next((argument for argument in arguments if not argument.startswith("-")), None) == "lock"
    end = arguments.index("--") if is_lock and "--" in arguments else len(arguments)
    parser = _parser()
    options, unknown = parser.parse_known_args(arguments[:end])
    if unknown:
        advice = (
            "; if it belongs to the command, put -- before the command" if is_lock and end == len(arguments) else ""
        )
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{advice}")
    if is_lock:
        options.wrapped += arguments[end:] if options.wrapped else arguments[end + 1 :]
    return options


def encoded(text: str) -> bytes:
    """Return a word of the command line as the bytes that the user typed."""
    return text.encode("utf-8", "surrogateescape")


def name_of(text: str) -> str | bytes:
    """Return a name of the command line for the library: text, or bytes if it is not valid text."""
    raw = encoded(text)
    return text if raw.decode("utf-8", "replace") == text else raw


def _checked(what: str, read: Callable[[str], T], fits: Callable[[T], bool]) -> Callable[[str], T]:
    """Return a function that reads a word; if it does not fit, the error says what it must be."""

    def check(text: str) -> T:
        with suppress(ValueError):
            value = read(text)
            if fits(value):
                return value
        raise argparse.ArgumentTypeError(f"must be {what}, not {text!r}")

    return check


_ADDRESS: Final = _checked(
    "HOST:PORT, such as 127.0.0.1:9465 or [::1]:9465",
    lambda text: urlsplit(f"//{text}"),
    lambda address: bool(address.hostname) and address.port is not None,
)
_COUNT: Final = _checked("a whole number of 1 or more", int, lambda number: number >= 1)
_SECONDS: Final = _checked("a positive number of seconds", float, lambda number: 0 < number < math.inf)
_PAUSE: Final = _checked("a positive number of seconds, at most a day", float, lambda number: 0 < number <= 86_400)
_SECONDS_OR_0: Final = _checked("a number of seconds", float, lambda number: 0 <= number < math.inf)


def urls_of(options: argparse.Namespace) -> list[str]:
    """Return the URLs from the options, or else from the environment.

    Raises:
        SetupError: There is none.
    """
    urls = split_urls(",".join(options.urls) if options.urls else os.environ.get("REDSYNC_URLS", ""))
    if not urls:
        raise SetupError(
            "no nodes configured: give --url for each node, or list them in REDSYNC_URLS, separated by commas",
            UNCONFIGURED,
        )
    return urls


# The parsers.


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="redsync",
        description="Run commands under distributed locks on independent Redis masters, and inspect these locks.",
    )
    add = parser.add_argument
    add("--version", action="version", version=f"redsync {__version__}", help="show the version and exit")
    add("--completion", action=_Completion, choices=("bash", "zsh", "fish"), help="print a shell's completion and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands", required=True)
    _add_lock(commands)
    _add_others(commands)
    return parser


def _add(commands: Any, command: str, summary: str, *parents: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add a command with the options of its parents; the summary describes it."""
    parser: argparse.ArgumentParser = commands.add_parser(
        command, help=summary, description=f"{summary[0].upper()}{summary[1:]}.", parents=parents
    )
    return parser


_options: Final = partial(argparse.ArgumentParser, add_help=False)  # a set of options that several commands share


def _add_nodes(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose the nodes."""
    add = parser.add_argument_group("nodes").add_argument
    text = "a node's URL, or several separated by commas; repeatable (default: REDSYNC_URLS)"
    add("--url", action="append", default=[], metavar="URL", dest="urls", help=text)
    prefix = os.environ.get("REDSYNC_PREFIX", "redsync:")
    add("--prefix", default=prefix, help="prefix of all keys (default: REDSYNC_PREFIX, or redsync:)")


def _matching(limit: int) -> argparse.ArgumentParser:
    options = _options()
    text = "pattern of names, with * ? [a-z] (default: all)"
    options.add_argument("pattern", nargs="?", default="*", metavar="PATTERN", help=text)
    text = f"the most names to query (default: {limit:,})"
    options.add_argument("--limit", type=_COUNT, default=limit, metavar="N", help=text)
    return options


def _add_others(commands: Any) -> None:
    """Add the commands that inspect a deployment, and those that start servers on this machine."""
    json, nodes, named = _options(), _options(), _options()
    json.add_argument("--json", action="store_true", help="write JSON to standard output")
    _add_nodes(nodes)
    text = "how long to wait for a node (default: 1)"
    nodes.add_argument("--timeout", type=_PAUSE, default=1.0, metavar="SECONDS", help=text)
    named.add_argument("name", metavar="NAME", help="the name, without the prefix")

    doctor = _add(commands, "doctor", "check each node and the deployment, and advise", nodes, json)
    doctor.epilog = "Exit status: 0 all is well, 1 something needs attention, 69 too few nodes answer."
    _add(commands, "ls", "list locks, semaphores and everything else on the nodes", nodes, json, _matching(1000))
    show = _add(commands, "show", "show each node's view of one name: holders and waiters", nodes, json, named)
    show.epilog = "Exit status: 0 held or free, 69 too few nodes answer."
    summary = "force-release one owner's lock or permit, for the next waiter"
    take_away = _add(commands, "break", summary, nodes, json, named)
    take_away.add_argument("--owner", required=True, metavar="ID", help="the owner's id, as printed by `redsync show`")
    take_away.add_argument("--yes", action="store_true", help="do not ask for confirmation")
    take_away.epilog = "Exit status: 0 released, 1 not held by that owner, or not confirmed."
    top = _add(commands, "top", "show holders and waiters continuously, until Ctrl-C", nodes, _matching(1000))
    text = "time between refreshes (default: 1)"
    top.add_argument("--interval", type=_PAUSE, default=1.0, metavar="SECONDS", help=text)
    summary = "export the nodes' state to Prometheus, until SIGTERM or Ctrl-C"
    exporter = _add(commands, "exporter", summary, nodes, _matching(10_000))
    text = "address to serve on (default: 127.0.0.1:9465; port 0 picks a free port)"
    exporter.add_argument("--listen", type=_ADDRESS, default="127.0.0.1:9465", metavar="HOST:PORT", help=text)

    dev = _add(commands, "dev", "run throwaway local nodes until Ctrl-C; print what to export", json)
    dev.add_argument("-n", "--nodes", type=_COUNT, default=3, metavar="N", help="number of nodes (default: 3)")
    summary = "watch processes compete for locks while nodes fail, and check every acquisition"
    add = _add(commands, "demo", summary).add_argument
    long_enough = _checked("a number of seconds of 1 or more", float, lambda number: 1 <= number < math.inf)
    add("--seconds", type=long_enough, default=12.0, metavar="S", help="duration of the run (12)")
    add("--seed", type=int, metavar="N", help="repeat the choices of an earlier run (random)")


_DOCS: Final = "documentation: docs/cli/index.md in the repository and in the source distribution"

_LOCK: Final = """\
Run a command while holding a lock that all machines share, as flock(1) does
on one machine.

redsync renews the lock while the command runs, and releases it when the
command and all its descendants have ended. If renewal fails, redsync ends
them before anyone else can acquire the lock."""

_LOCK_DETAILS: Final = """\
the command:
  All words after its first belong to it. It runs without a shell (but see -c).
  Its environment has REDSYNC_LOCK_NAME, REDSYNC_OWNER and, for a fenced lock,
  REDSYNC_FENCING_TOKEN. redsync forwards TERM, INT, HUP and QUIT to it.
  Processes that it leaves running have -k seconds to end by themselves.

exit status:
  the command's own, or 128 + n if signal n ended the command or the wait;
   64 wrong usage         69 too few nodes answer    75 others hold the lock
   77 access denied       78 bad settings, or the name is another kind of lock
  124 redsync ended the command: its lock was lost, or --max-hold had passed
  125 redsync failed     126 command can't run      127 command not found

examples:
  Run a job on one of many machines whose crontabs fire within a minute:
    redsync lock nightly -n -E 0 --min-hold 60 ./report.sh
  Wait at most ten minutes, and say so; run at most three at a time:
    redsync lock deploy -w 600 -v --permits 3 make deploy
  Share the lock with other readers, while no writer (-x) holds it:
    redsync lock table -s -c 'pg_dump db | gzip >db.gz'"""


def _add_lock(commands: Any) -> None:
    parser = commands.add_parser(
        "lock",
        help="run a command while holding a distributed lock",
        description=_LOCK,
        usage="redsync lock [options] NAME [options] [--] COMMAND [ARGUMENT ...]\n"
        "       redsync lock [options] NAME [options] -c STRING",
        epilog=_LOCK_DETAILS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", metavar="NAME", help="the lock's name, the same on all machines")
    parser.set_defaults(timeout=1.0)
    text = "the command with its arguments; it needs -- before it only if it begins with -"
    wrapped = parser.add_argument("wrapped", nargs=argparse.PARSER, default=[], metavar="COMMAND", help=text)
    wrapped.required = False  # not with -c, nor if it follows --
    wrapped.complete = {"bash": "_shtab_compgen_files", "zsh": "_files"}  # for shtab
    parser.add_argument("-c", "--shell", metavar="STRING", help="run STRING with /bin/sh instead of a command")
    add = parser.add_mutually_exclusive_group().add_argument
    add("-q", "--quiet", action="store_true", help="print errors only")
    add("-v", "--verbose", action="store_true", help="print that it waits, and how long the wait took")

    waiting = parser.add_argument_group("how long to wait (default: forever)")
    add = waiting.add_mutually_exclusive_group().add_argument
    text = "do not wait: exit with 75 if others hold the lock"
    add("-n", "--nonblock", action="store_const", const=0.0, dest="wait", help=text)
    add("-w", "--wait", type=_SECONDS_OR_0, metavar="SECONDS", help="wait at most this long, then exit with 75")
    add = waiting.add_argument
    status = _checked("a whole number from 0 to 255", int, range(256).__contains__)
    add("-E", "--conflict-exit-code", type=status, default=BUSY, metavar="N", help="exit with N instead of 75")

    kinds = parser.add_argument_group("kind of lock (default: fenced, one holder at a time)")
    add = kinds.add_mutually_exclusive_group().add_argument
    add("-s", "--shared", action="store_true", help="read side of a read-write lock: shared with other readers")
    add("-x", "--exclusive", action="store_true", help="write side of a read-write lock: one holder at a time")
    permits = _checked("a whole number from 1 to 10,000", int, range(1, 10_001).__contains__)
    add("--permits", type=permits, metavar="N", help="one of a semaphore's N permits: N holders at a time")
    add("--fair", action="store_true", help="fair lock: first come, first served")

    add = parser.add_argument_group("how long to hold").add_argument
    text = "how long others wait after a crash (default: REDSYNC_LEASE, or 30)"
    add("--lease", type=_SECONDS, metavar="SECONDS", help=text)
    add("--min-hold", type=_SECONDS, metavar="SECONDS", help="hold the lock this long, even if the command is shorter")
    add("--max-hold", type=_SECONDS, metavar="SECONDS", help="end the command after this long, and exit with 124")
    add("-k", "--kill-after", type=_SECONDS_OR_0, metavar="SECONDS", help="time from SIGTERM to SIGKILL (default: 5)")
    text = "before the lock is lost, send SIGTERM and later SIGKILL (term, the default), or nothing (ignore)"
    add("--on-lost", choices=("term", "ignore"), default="term", help=text)
    _add_nodes(parser)
