"""What tests of locks and mutexes on real nodes do again and again."""

import time

import pytest

from redsync import LeaseLostError, RedsyncError

__all__ = ["PATIENCE", "SHORT", "claims", "flush", "lose", "timed", "values"]

PATIENCE = 20.0
"""Seconds until a test gives up waiting for what happens at once on a machine that has time for it.

Less than the 30 s that a client's lease has unless told otherwise, by whose end all is given back anyway.
"""

SHORT = 0.6
"""A lease in seconds that a watchdog on a busy machine keeps, and a test can wait for."""


def timed(function, *args, **kwargs):
    """Return a call's result, or its error, and the seconds that it took."""
    started = time.monotonic()
    try:
        result = function(*args, **kwargs)
    except RedsyncError as error:
        result = error
    return result, time.monotonic() - started


def claims(raw, key="redsync:x"):
    """Return what each node stores for a lock: owner -> hold count; each claim has a number besides its owner."""
    return [{claim.rpartition(b":")[0]: count for claim, count in node.hgetall(key).items()} for node in raw]


def values(raw, key="redsync:x"):
    """Return what each node stores for a mutex."""
    return [node.get(key) for node in raw]


def flush(raw, nodes=5):
    for node in raw[:nodes]:
        node.flushall()


def lose(raw, lock):
    """Let this thread's hold be lost, and let it notice."""
    flush(raw)
    with pytest.raises(LeaseLostError):
        lock.extend()
