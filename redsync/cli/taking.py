"""How `redsync lock` acquires its lock: the kind, the wait, and the messages."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from redsync.cli.arguments import name_of
from redsync.cli.exits import REFUSED, status_of
from redsync.cli.output import warn
from redsync.exceptions import AcquireTimeout, QuorumError, RedsyncError

if TYPE_CHECKING:
    from redsync import Client, Hold

__all__ = ["Voice", "take"]


class Voice:
    """Writes messages to standard error; standard output belongs to the command."""

    def __init__(self, quiet: bool, verbose: bool) -> None:
        self.verbose = verbose
        self._quiet = quiet

    def say(self, text: str) -> None:
        """Write a message, unless `--quiet`."""
        if not self._quiet:
            warn(f"redsync lock: {text}")

    def detail(self, text: str) -> None:
        """Write a message if `--verbose`."""
        if self.verbose:
            self.say(text)


def take(
    stack: ExitStack, client: Client, options: argparse.Namespace, voice: Voice, on_lost: Callable[[Any], object]
) -> Hold:
    """Acquire the lock that the options ask for; the stack releases it.

    The first try does not wait. So it reports at once that nodes refuse our password, although we otherwise wait while
    too few nodes answer, and it finds the holder for the message about the wait.

    Raises:
        AcquireTimeout: Others held it all the time.
        QuorumError: Too few nodes answered until the end, or they refuse access.
        RedsyncError: The name is another kind of lock, or has other settings.
        ValueError: The name is invalid.
    """
    began = time.monotonic()
    behind = ""
    try:
        hold = _enter(stack, client, options, 0.0, on_lost)
    except (AcquireTimeout, QuorumError) as error:
        if options.wait == 0 or (isinstance(error, QuorumError) and status_of(error) == REFUSED):
            raise
        behind = _behind(client, options, error) if voice.verbose else ""
        voice.detail(f"waiting for {options.name!r}{behind}")
        left = None if options.wait is None else max(options.wait - (time.monotonic() - began), 0.0)
        hold = _enter(stack, client, options, left, on_lost)
    token = "" if hold.fencing_token is None else f", fencing token {hold.fencing_token}"
    voice.detail(f"acquired {options.name!r} after {time.monotonic() - began:.2f} s{behind}{token}")
    return hold


def _enter(
    stack: ExitStack,
    client: Client,
    options: argparse.Namespace,
    timeout: float | None,
    on_lost: Callable[[Any], object],
) -> Hold:
    name = name_of(options.name)
    settings: dict[str, Any] = {"timeout": timeout, "on_lost": on_lost}
    if options.permits is not None:
        return stack.enter_context(client.get_semaphore(name, options.permits, **settings))
    if options.fair:
        return stack.enter_context(client.get_fair_lock(name, **settings))
    if options.shared:
        return stack.enter_context(client.get_read_write_lock(name, **settings).read_lock)
    if options.exclusive:
        return stack.enter_context(client.get_read_write_lock(name, **settings).write_lock)
    return stack.enter_context(client.get_fenced_lock(name, **settings))


def _behind(client: Client, options: argparse.Namespace, error: RedsyncError) -> str:
    """Return who is ahead of us, as the rest of a sentence."""
    if isinstance(error, QuorumError):
        return f": {error}"
    try:
        if options.permits is not None:
            holders: tuple[Any, ...] = client.get_semaphore(name_of(options.name), options.permits).holders()
            waiters = 0
        else:
            info = client.inspect(name_of(options.name))
            # We have no place in the queue yet.
            holders, waiters = info.holders, len(info.waiters)
    except RedsyncError:
        return ""
    names = ", ".join(map(_describe, holders)) or "a holder that has just released it"
    return f" behind {names}{f' and {waiters} waiting' if waiters else ''}"


def _describe(holder: Any) -> str:
    if holder.host is None:
        return str(holder.owner)
    program = f" ({holder.program})" if holder.program else ""
    return f"process {holder.pid} on {holder.host}{program}"
