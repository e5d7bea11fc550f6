"""`redsync lock NAME [options] -- COMMAND ...`: run a command while holding a lock, as flock(1) does on one machine.

redsync renews the lock while the command runs. If that fails, redsync ends the command and its descendants before
another owner can have the lock (see `supervisor`).
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
from contextlib import AbstractContextManager, ExitStack, suppress
from typing import TYPE_CHECKING, Any, Final

from redsync.cli.arguments import name_of, urls_of
from redsync.cli.exits import ENDED, FAILED, NOT_EXECUTABLE, NOT_FOUND, SIGNALLED, SetupError, status_of
from redsync.cli.output import warn
from redsync.cli.shim import BEHIND, DESERTED, LONG, Policy
from redsync.cli.supervisor import ShimProcess, Signals, Supervisor, has_terminal
from redsync.exceptions import AcquireTimeout, LeaseLostError, QuorumError, RedsyncError

if TYPE_CHECKING:
    from redsync import Client, Hold

_KILL_AFTER: Final = 5.0

_SHARE: Final = 0.4
"""The share of a lease that the command's end may take: a renewal is due after a third, and a second try after that."""


def run(options: argparse.Namespace) -> int:
    """Run the command under its lock; return the exit status."""
    status = _run(options)
    if status == SIGNALLED + signal.SIGINT and has_terminal():
        # An interactive shell's loop continues unless SIGINT ends the process that the shell waits for.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    return status


def _run(options: argparse.Namespace) -> int:
    command = _command(options)
    if options.min_hold is not None and options.max_hold is not None and options.min_hold > options.max_hold:
        raise SetupError("--min-hold is longer than --max-hold")
    # We report a lost hold ourselves. Messages about nodes remain, because they may explain a long wait.
    logging.getLogger("redsync.watchdog").setLevel(logging.CRITICAL)
    if options.quiet:
        logging.getLogger("redsync").setLevel(logging.CRITICAL + 1)
    try:
        # The shim is a fork of this process, so start it before there are threads, connections or a lock.
        with Signals() as signals, ShimProcess() as shim:
            return _hold_and_run(options, command, shim, signals)
    except SystemExit as end:
        status = int(end.code or 0)
        _note(options, f"ended by signal {status - SIGNALLED} before the command started")
        return status
    except AcquireTimeout:
        _note(options, f"{options.name!r} is held by others")
        return int(options.conflict_exit_code)
    except QuorumError as error:
        raise SetupError(f"{error}; `redsync doctor` says more", status_of(error)) from error


def _say(text: str) -> None:
    """Report an error; standard output belongs to the command."""
    warn(f"redsync lock: {text}")


def _note(options: argparse.Namespace, text: str) -> None:
    """Report something other than an error, unless `--quiet`."""
    if not options.quiet:
        _say(text)


def _hold_and_run(options: argparse.Namespace, command: list[str], shim: ShimProcess, signals: Signals) -> int:
    urls, settings = urls_of(options), {} if options.lease is None else {"lease": options.lease}
    # Not before the shim, which is a copy of this process, has started.
    from redsync.client import Client

    with Client.from_env(urls, prefix=options.prefix, **settings) as client, ExitStack() as stack:
        policy = _policy(options, lease := client.runner.session.timing.lease)
        try:
            hold = _take(stack, client, options, signals, lease * 2 / 3 if policy.ends_lost else 0.0)
        except ValueError as error:
            if isinstance(error, RedsyncError):
                raise
            raise SetupError(str(error)) from None
        began = time.monotonic()
        # From here on signals are only recorded, and the lock is released as usual.
        signals.collect()
        supervisor = Supervisor(shim, hold, signals, policy, _say)
        environment = os.environ | {"REDSYNC_LOCK_NAME": options.name, "REDSYNC_OWNER": hold.owner}
        # An enclosing `redsync lock` may have set the token of another lock.
        environment.pop("REDSYNC_FENCING_TOKEN", None)
        if hold.fencing_token is not None:
            environment["REDSYNC_FENCING_TOKEN"] = str(hold.fencing_token)
        supervisor.run(command, environment)
        status = _status_of(supervisor, options)
        lost = hold.lost
        if options.min_hold is not None:
            until = began + options.min_hold
            while (left := until - time.monotonic()) > 0 and not hold.lost and not signals.take():
                signals.wait(left)
        try:
            stack.close()
        except LeaseLostError as error:
            _say(str(error))
            lost = lost or options.min_hold is None
        return ENDED if lost and policy.ends_lost else status


def _status_of(supervisor: Supervisor, options: argparse.Namespace) -> int:
    """Return the exit status of an ended command, and report why it ended."""
    if supervisor.errno:
        command = _command(options)[0]
        _say(f"can't run {command!r}: {os.strerror(supervisor.errno)}")
        return NOT_FOUND if supervisor.errno == errno.ENOENT else NOT_EXECUTABLE
    if supervisor.reason in (LONG, BEHIND):
        _note(options, supervisor.reason)
    elif supervisor.reason is not None:
        _say(supervisor.reason)
    if supervisor.reason == DESERTED:
        return FAILED
    return supervisor.status if supervisor.reason in (None, BEHIND) else ENDED


def _command(options: argparse.Namespace) -> list[str]:
    if options.shell is not None:
        if options.wrapped:
            raise SetupError("give the command either with -c or after the name, not both")
        return ["/bin/sh", "-c", options.shell]
    if not options.wrapped:
        raise SetupError("no command to run: give it after the name, as in: redsync lock NAME COMMAND")
    return list(options.wrapped)


def _policy(options: argparse.Namespace, lease: float) -> Policy:
    """Return when to end the command; the end is short enough that renewals are due before it must begin."""
    longest = lease * _SHARE
    kill_after = min(_KILL_AFTER, longest) if options.kill_after is None else options.kill_after
    if options.on_lost == "term" and kill_after > longest:
        raise SetupError(
            f"a lease of {lease:g} s is too short for --kill-after {kill_after:g}, which would end the command too "
            f"late: give at least --lease {math.ceil(kill_after / _SHARE)}, or at most --kill-after {longest:g}"
        )
    return Policy(options.on_lost == "term", kill_after, min(0.5, lease / 10), options.max_hold or math.inf)


def _take(stack: ExitStack, client: Client, options: argparse.Namespace, signals: Signals, least: float) -> Hold:
    """Acquire the lock that the options ask for, with at least `least` seconds left; the stack releases it.

    The first try does not wait, so that we can say that the next one does.

    Raises:
        AcquireTimeout: Others held it all the time.
        QuorumError: Too few nodes answered until the end, or they refuse access.
        RedsyncError: The name is another kind of lock, or has other settings.
        ValueError: The name is invalid.
    """

    def acquire(timeout: float | None) -> Hold:
        return stack.enter_context(_lock(client, options, timeout=timeout, on_lost=lambda _: signals.wake()))

    def tell(error: RedsyncError) -> None:
        if options.verbose:
            _say(f"waiting for {options.name!r}{'' if isinstance(error, AcquireTimeout) else f': {error}'}")

    began, hold = time.monotonic(), None
    try:
        hold = acquire(0.0)
    except (AcquireTimeout, QuorumError) as error:
        if options.wait == 0:
            raise
        tell(error)
    while True:
        if hold is None:
            hold = acquire(None if options.wait is None else max(options.wait - (time.monotonic() - began), 0.0))
        try:
            # A hand-over is for the rest of its place in the queue: after that, or a pause, too little may be left.
            if hold.remaining() < least:
                hold.extend()
            break
        except (LeaseLostError, QuorumError) as error:
            tell(error)
            hold = None
            with suppress(LeaseLostError):
                stack.close()
    if options.verbose:
        token = "" if hold.fencing_token is None else f", fencing token {hold.fencing_token}"
        _say(f"acquired {options.name!r} after {time.monotonic() - began:.2f} s{token}")
    return hold


def _lock(client: Client, options: argparse.Namespace, **settings: Any) -> AbstractContextManager[Hold]:
    """Return the lock that the options ask for."""
    name = name_of(options.name)
    if options.permits is not None:
        return client.get_semaphore(name, options.permits, **settings)
    if options.fair:
        return client.get_fair_lock(name, **settings)
    if options.shared:
        return client.get_read_write_lock(name, **settings).read_lock
    if options.exclusive:
        return client.get_read_write_lock(name, **settings).write_lock
    return client.get_fenced_lock(name, **settings)
