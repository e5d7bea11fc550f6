"""`redsync lock NAME [options] -- COMMAND ...`: run a command while holding a lock, as flock(1) does for one machine.

Which kind of lock a name is follows from the options, and must be the same wherever the name is used:

| options | kind |
|---|---|
| none | a fenced lock: the command finds its token in `REDSYNC_FENCING_TOKEN` |
| `--fair` | a fair lock: first come, first served; no token |
| `-s`, `-x` | the read or the write side of a read-write lock; no token |
| `--permits N` | one of N permits of a semaphore; no token |

The lock is renewed while the command runs. If that fails, the command is ended, with all that it has started, before
another can have the lock (see `keeper`).
Exit status: the command's own, 128 + n if signal n ended it; else see `exits`.
"""

from __future__ import annotations

import argparse
import errno
import logging
import math
import os
import signal
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

from redsync.cli import nodes
from redsync.cli.arguments import seconds, whole
from redsync.cli.deadlines import BEHIND, DESERTED, LATE, LONG, LOST
from redsync.cli.exits import BUSY, ENDED, FAILED, NOT_EXECUTABLE, NOT_FOUND, SIGNALLED, UsageError, status_of
from redsync.exceptions import AcquireTimeout, LeaseLostError, RedsyncError

if TYPE_CHECKING:
    from redsync import Hold
    from redsync.cli.deadlines import Policy
    from redsync.cli.keeper import Keeper
    from redsync.cli.signals import Signals
    from redsync.cli.supervisor import Supervisor
    from redsync.cli.taking import Voice

__all__ = ["add_parsers", "run"]

KILL_AFTER: Final = 5.0

_DESCRIPTION: Final = """\
Run a command while holding a lock that all machines share, as flock(1) does
for one machine.

The lock is renewed while the command runs, and given back when it has ended,
with all that it has started. If it can't be renewed, all of them are ended
before anybody else can have it."""

_EPILOG: Final = """\
the command:
  No shell is between (but with -c): it gets its arguments as they are, and our
  standard input, output and error. In its environment it finds
  REDSYNC_LOCK_NAME, REDSYNC_OWNER and, of a fenced lock, REDSYNC_FENCING_TOKEN.
  TERM, INT, HUP and QUIT are forwarded to it. What it leaves running has as
  long as -k says to end by itself, and is ended then.

exit status:
  the command's own, or 128 + n if signal n ended it, or us while we waited
   64  wrong usage
   69  too few nodes answer
   75  busy: others hold the lock (-E changes it)
   77  the nodes refuse the password, or forbid a command
   78  no nodes configured, or the name is another kind of lock
  124  the command was ended by us: its lock was lost, or --max-hold was over
  125  redsync itself failed
  126  the command can't be executed
  127  the command was not found

examples:
  One machine of many does it, those whose crontab fires within a minute do not:
    redsync lock nightly -n -E 0 --min-hold 60 -- ./report.sh
  Wait ten minutes at most, and say behind whom:
    redsync lock deploy -w 600 -v -- make deploy
  Three at a time:
    redsync lock api --permits 3 -- ./import.py
  With other readers, while nobody writes (-x):
    redsync lock table -s -c 'pg_dump db | gzip >db.gz'"""

_TOLD: Final = {
    LOST: "ended the command: the lock was lost",
    LATE: "ended the command: the lock could not be renewed and was about to be lost",
    LONG: "ended the command: it held the lock for too long",
    DESERTED: "ended the command: the process that keeps its deadline had been ended",
    BEHIND: "ended what the command had left running",
}

_SHARE: Final = 0.4
"""The part of a lease that the command's end may take: a renewal comes at a third of it, and a second try after
that.
"""


def add_parsers(subparsers: Any) -> None:
    """Add the command and its arguments."""
    summary = "run a command while holding a distributed lock"
    parser = subparsers.add_parser(
        "lock",
        help=summary,
        description=_DESCRIPTION,
        usage="redsync lock NAME [options] -- COMMAND [ARGUMENT ...]\n       redsync lock NAME [options] -c STRING",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    parser.add_argument("name", metavar="NAME", help="the lock's name, the same on all machines")
    add = parser.add_argument
    add("-c", "--shell", metavar="STRING", help="run this with /bin/sh instead of a command after --")
    add("-q", "--quiet", action="store_true", help="say nothing")
    add("-v", "--verbose", action="store_true", help="say behind whom it waits, and how long it waited")

    add = parser.add_argument_group("how long to wait (default: for ever)").add_argument
    add("-n", "--nonblock", action="store_true", help="do not wait: end with 75 if others hold it")
    add("-w", "--wait", type=seconds(0), metavar="SECONDS", help="wait so long at most, then end with 75")
    add("-E", "--conflict-exit-code", type=whole(0, 255), default=BUSY, metavar="N", help="the status instead of 75")

    add = parser.add_argument_group("which kind (default: a fenced lock, one holder at a time)").add_argument
    add("-s", "--shared", action="store_true", help="the read side of a read-write lock: with other readers")
    add("-x", "--exclusive", action="store_true", help="the write side of a read-write lock: alone")
    add("--permits", type=whole(1, 10_000), metavar="N", help="one of N permits of a semaphore: N at a time")
    add("--fair", action="store_true", help="a fair lock: first come, first served")

    add = parser.add_argument_group("how long to hold").add_argument
    add("--lease", type=seconds(), metavar="SECONDS", help="how long others wait after a crash (REDSYNC_LEASE, or 30)")
    add("--min-hold", type=seconds(), metavar="SECONDS", help="keep the lock so long, however short the command is")
    add("--max-hold", type=seconds(), metavar="SECONDS", help="end the command after so long, with 124")
    add("-k", "--kill-after", type=seconds(0), metavar="SECONDS", help="from SIGTERM to SIGKILL (default: 5)")
    add(
        "--on-lost",
        choices=("term", "kill", "ignore"),
        default="term",
        help="when the lock is about to be lost: SIGTERM and then SIGKILL (default), SIGKILL at once, or nothing",
    )
    nodes.add_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Run the command under its lock; return the exit status."""
    from redsync.cli.terminal import foreground

    status = _run(options)
    if status == SIGNALLED + signal.SIGINT and foreground() == os.getpgrp():
        # An interactive shell's loop goes on unless the key also ended the process that the shell waits for.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    return status


def _run(options: argparse.Namespace) -> int:
    command = _command(options)
    _check(options)
    from redsync.cli.signals import SignalledError
    from redsync.cli.taking import Voice

    voice = Voice(options.quiet, options.verbose)
    try:
        return _run_under_lock(options, command, voice)
    except SignalledError as end:
        voice.say(f"ended by signal {end.number} before the command began")
        return SIGNALLED + end.number
    except AcquireTimeout:
        voice.say(f"{options.name!r} is held by others")
        return int(options.conflict_exit_code)
    except RedsyncError as error:
        voice.say(str(error))
        return status_of(error)
    except OSError as error:
        voice.say(f"failed: {error}")
        return FAILED


def _run_under_lock(options: argparse.Namespace, command: list[str], voice: Voice) -> int:
    from redsync.cli.keeper import Keeper
    from redsync.cli.signals import Signals

    _silence(options.quiet)
    # The keeper is a copy of this process, so it comes first: before threads, connections and the lock.
    with Signals() as signals, Keeper(command, _environment(options), signals.spurned) as keeper:
        return _hold_and_run(options, keeper, signals, voice)


def _hold_and_run(options: argparse.Namespace, keeper: Keeper, signals: Signals, voice: Voice) -> int:
    from redsync.cli.supervisor import Supervisor
    from redsync.cli.taking import take

    with nodes.connect(options, lease=options.lease) as client, ExitStack() as stack:
        policy = _policy(options, client.runner.session.timing.lease)
        try:
            hold = take(stack, client, options, voice, lambda _: signals.wake())
        except ValueError as error:
            if isinstance(error, RedsyncError):
                raise
            raise UsageError(str(error)) from None
        began = time.monotonic()
        # A lock that a signal interrupts from here on is given back as usual.
        signals.collect()
        supervisor = Supervisor(keeper, hold, signals, policy, voice.say)
        supervisor.run()
        status = _status_of(supervisor, voice)
        lost = hold.lost
        if options.min_hold is not None:
            _linger(hold, signals, began + options.min_hold)
        try:
            stack.close()
        except LeaseLostError as error:
            voice.say(str(error))
            lost = lost or options.min_hold is None
        return ENDED if lost and policy.heeds_loss else status


def _status_of(supervisor: Supervisor, voice: Voice) -> int:
    """Return the exit status of a command that has ended, and report why it ended."""
    if supervisor.errno:
        voice.say(f"can't run the command: {os.strerror(supervisor.errno)}")
        return NOT_FOUND if supervisor.errno == errno.ENOENT else NOT_EXECUTABLE
    if supervisor.reason is not None:
        voice.say(_TOLD[supervisor.reason])
    if supervisor.reason == DESERTED:
        return FAILED
    return supervisor.status if supervisor.reason in (None, BEHIND) else ENDED


def _environment(options: argparse.Namespace) -> dict[str, str]:
    """Return the command's environment, as far as it is known before the lock is held."""
    environment = {**os.environ, "REDSYNC_LOCK_NAME": options.name}
    # The token of an enclosing `redsync lock` is not the token of this lock.
    environment.pop("REDSYNC_FENCING_TOKEN", None)
    return environment


def _linger(hold: Hold, signals: Signals, until: float) -> None:
    """Keep the lock until that instant, or a signal asks us to end."""
    from redsync.cli.signals import FORWARDED

    while (left := until - time.monotonic()) > 0 and not hold.lost:
        came = signals.wait(left)
        if any(number in FORWARDED for number in came):
            return
        if signal.SIGTSTP in came:
            signals.stop_ourselves()


def _silence(quiet: bool) -> None:
    # We report a lost hold ourselves. Messages about nodes stay, because they may explain a long wait.
    logging.getLogger("redsync.watchdog").setLevel(logging.CRITICAL)
    if quiet:
        logging.getLogger("redsync").setLevel(logging.CRITICAL + 1)


def _command(options: argparse.Namespace) -> list[str]:
    if options.shell is not None:
        if options.wrapped:
            raise UsageError("give the command either with -c or after --, not both")
        return ["/bin/sh", "-c", options.shell]
    if not options.wrapped:
        raise UsageError("there is no command to run: give it after --, as in: redsync lock NAME -- COMMAND")
    return list(options.wrapped)


def _check(options: argparse.Namespace) -> None:
    """Refuse options that contradict each other."""
    kinds = {
        "-s": options.shared,
        "-x": options.exclusive,
        "--fair": options.fair,
        "--permits": options.permits is not None,
    }
    chosen = [option for option, given in kinds.items() if given]
    if len(chosen) > 1:
        raise UsageError(f"{' and '.join(chosen)} are different kinds of locks: give one of them")
    if options.nonblock:
        if options.wait:
            raise UsageError("-n does not wait, and -w does: give one of them")
        options.wait = 0.0
    if options.quiet and options.verbose:
        raise UsageError("-q says nothing, and -v says more: give one of them")
    if options.min_hold is not None and options.max_hold is not None and options.min_hold > options.max_hold:
        raise UsageError("--min-hold is longer than --max-hold")


def _policy(options: argparse.Namespace, lease: float) -> Policy:
    """Return when to end the command; the end is short enough for renewals to come before it must begin."""
    from redsync.cli.deadlines import Policy, margin_of

    longest = lease * _SHARE
    kill_after = min(KILL_AFTER, longest) if options.kill_after is None else options.kill_after
    if options.on_lost == "term" and kill_after > longest:
        raise UsageError(
            f"a lease of {lease:g} s is too short for --kill-after {kill_after:g}: the command could not be "
            f"ended in time; take --lease {math.ceil(kill_after / _SHARE)}, or --kill-after {longest:g} at most"
        )
    return Policy(options.on_lost, kill_after, margin_of(lease), options.max_hold or math.inf)
