"""`redsync lock NAME [options] -- COMMAND ...`: run a command while holding a lock, as flock(1) does on one machine.

The options determine the kind of lock; all uses of a name must choose the same kind:

| options | kind |
|---|---|
| none | a fenced lock; the command finds its token in `REDSYNC_FENCING_TOKEN` |
| `--fair` | a fair lock: first come, first served; no token |
| `-s`, `-x` | the read or the write side of a read-write lock; no token |
| `--permits N` | one of N permits of a semaphore; no token |

redsync renews the lock while the command runs. If that fails, redsync ends the command and its descendants before
another owner can have the lock (see `keeper`).
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
on one machine.

redsync renews the lock while the command runs, and releases it when the
command and all its descendants have ended. If renewal fails, redsync ends
them before anyone else can acquire the lock."""

_EPILOG: Final = """\
the command:
  It runs without a shell (but see -c), with its arguments unchanged and with
  redsync's standard input, output and error. Its environment has
  REDSYNC_LOCK_NAME, REDSYNC_OWNER and, for a fenced lock,
  REDSYNC_FENCING_TOKEN. redsync forwards TERM, INT, HUP and QUIT to it.
  Processes that it leaves running have -k seconds to end by themselves; then
  redsync ends them.

exit status:
  the command's own, or 128 + n if signal n ended the command or the wait
   64  wrong usage
   69  too few nodes answer
   75  busy: others hold the lock (-E changes this status)
   77  the nodes refuse the password, or forbid a command
   78  no nodes configured, or the name is another kind of lock
  124  redsync ended the command: its lock was lost, or --max-hold had passed
  125  redsync itself failed
  126  the command can't be executed
  127  the command was not found

examples:
  Run a job on one of many machines whose crontabs fire within a minute:
    redsync lock nightly -n -E 0 --min-hold 60 -- ./report.sh
  Wait at most ten minutes, and say who is ahead:
    redsync lock deploy -w 600 -v -- make deploy
  Run at most three at a time:
    redsync lock api --permits 3 -- ./import.py
  Share the lock with other readers, while no writer (-x) holds it:
    redsync lock table -s -c 'pg_dump db | gzip >db.gz'"""

_TOLD: Final = {
    LOST: "ended the command: the lock was lost",
    LATE: "ended the command: the lock could not be renewed and was about to be lost",
    LONG: "ended the command: --max-hold has passed",
    DESERTED: "ended the command: the process that enforces its deadline had ended",
    BEHIND: "ended processes that the command left running",
}

_SHARE: Final = 0.4
"""The share of a lease that the command's end may take: a renewal is due after a third, and a second try after that."""


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
    add("-c", "--shell", metavar="STRING", help="run STRING with /bin/sh instead of a command after --")
    add("-q", "--quiet", action="store_true", help="print no messages")
    add("-v", "--verbose", action="store_true", help="print who is ahead, and how long the wait took")

    add = parser.add_argument_group("how long to wait (default: forever)").add_argument
    add("-n", "--nonblock", action="store_true", help="do not wait: exit with 75 if others hold the lock")
    add("-w", "--wait", type=seconds(0), metavar="SECONDS", help="wait at most this long, then exit with 75")
    add("-E", "--conflict-exit-code", type=whole(0, 255), default=BUSY, metavar="N", help="exit with N instead of 75")

    add = parser.add_argument_group("kind of lock (default: fenced, one holder at a time)").add_argument
    add("-s", "--shared", action="store_true", help="read side of a read-write lock: shared with other readers")
    add("-x", "--exclusive", action="store_true", help="write side of a read-write lock: one holder at a time")
    add("--permits", type=whole(1, 10_000), metavar="N", help="one of a semaphore's N permits: N holders at a time")
    add("--fair", action="store_true", help="fair lock: first come, first served")

    add = parser.add_argument_group("how long to hold").add_argument
    add(
        "--lease",
        type=seconds(),
        metavar="SECONDS",
        help="how long others wait after a crash (default: REDSYNC_LEASE, or 30)",
    )
    add("--min-hold", type=seconds(), metavar="SECONDS", help="hold the lock this long, even if the command is shorter")
    add("--max-hold", type=seconds(), metavar="SECONDS", help="end the command after this long, and exit with 124")
    add("-k", "--kill-after", type=seconds(0), metavar="SECONDS", help="time from SIGTERM to SIGKILL (default: 5)")
    add(
        "--on-lost",
        choices=("term", "kill", "ignore"),
        default="term",
        help="before the lock is lost, send SIGTERM and later SIGKILL (term, the default), only SIGKILL (kill), or "
        "nothing (ignore)",
    )
    nodes.add_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Run the command under its lock; return the exit status."""
    from redsync.cli.terminal import foreground

    status = _run(options)
    if status == SIGNALLED + signal.SIGINT and foreground() == os.getpgrp():
        # An interactive shell's loop continues unless SIGINT ends the process that the shell waits for.
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
        voice.say(f"ended by signal {end.number} before the command started")
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
    # The keeper is a fork of this process, so start it before there are threads, connections or a lock.
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
        # From here on signals are only recorded, and the lock is released as usual.
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
    """Return the exit status of an ended command, and report why it ended."""
    if supervisor.errno:
        voice.say(f"can't run the command: {os.strerror(supervisor.errno)}")
        return NOT_FOUND if supervisor.errno == errno.ENOENT else NOT_EXECUTABLE
    if supervisor.reason is not None:
        voice.say(_TOLD[supervisor.reason])
    if supervisor.reason == DESERTED:
        return FAILED
    return supervisor.status if supervisor.reason in (None, BEHIND) else ENDED


def _environment(options: argparse.Namespace) -> dict[str, str]:
    """Return the command's environment, as far as known before the lock is held."""
    environment = {**os.environ, "REDSYNC_LOCK_NAME": options.name}
    # An enclosing `redsync lock` may have set the token of another lock.
    environment.pop("REDSYNC_FENCING_TOKEN", None)
    return environment


def _linger(hold: Hold, signals: Signals, until: float) -> None:
    """Keep the lock until that instant, or until a signal asks us to end."""
    from redsync.cli.signals import FORWARDED

    while (left := until - time.monotonic()) > 0 and not hold.lost:
        came = signals.wait(left)
        if any(number in FORWARDED for number in came):
            return
        if signal.SIGTSTP in came:
            signals.stop_ourselves()


def _silence(quiet: bool) -> None:
    # We report a lost hold ourselves. Messages about nodes remain, because they may explain a long wait.
    logging.getLogger("redsync.watchdog").setLevel(logging.CRITICAL)
    if quiet:
        logging.getLogger("redsync").setLevel(logging.CRITICAL + 1)


def _command(options: argparse.Namespace) -> list[str]:
    if options.shell is not None:
        if options.wrapped:
            raise UsageError("give the command either with -c or after --, not both")
        return ["/bin/sh", "-c", options.shell]
    if not options.wrapped:
        raise UsageError("no command to run: give it after --, as in: redsync lock NAME -- COMMAND")
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
        raise UsageError(f"{' and '.join(chosen)} choose different kinds of lock: give only one")
    if options.nonblock:
        if options.wait:
            raise UsageError("-n does not wait, but -w does: give only one")
        options.wait = 0.0
    if options.quiet and options.verbose:
        raise UsageError("-q prints no messages, but -v prints more: give only one")
    if options.min_hold is not None and options.max_hold is not None and options.min_hold > options.max_hold:
        raise UsageError("--min-hold is longer than --max-hold")


def _policy(options: argparse.Namespace, lease: float) -> Policy:
    """Return when to end the command; the end is short enough that renewals are due before it must begin."""
    from redsync.cli.deadlines import Policy, margin_of

    longest = lease * _SHARE
    kill_after = min(KILL_AFTER, longest) if options.kill_after is None else options.kill_after
    if options.on_lost == "term" and kill_after > longest:
        raise UsageError(
            f"a lease of {lease:g} s is too short for --kill-after {kill_after:g}, which would end the command too "
            f"late: give at least --lease {math.ceil(kill_after / _SHARE)}, or at most --kill-after {longest:g}"
        )
    return Policy(options.on_lost, kill_after, margin_of(lease), options.max_hold or math.inf)
