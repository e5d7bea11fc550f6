"""Common helpers for tests of locks and mutexes on real nodes."""

import time

from redsync import RedsyncError

PATIENCE = 20.0
"""Seconds until a test gives up waiting for something that happens at once on an idle machine.

Less than the client's default lease of 30 s, at whose end everything is released anyway.
"""

SHORT = 0.6
"""A lease in seconds that a watchdog on a busy machine keeps, and that a test can wait for."""


def timed(function, *args, **kwargs):
    """Return a call's result, or its error, and the seconds that it took."""
    started = time.monotonic()
    try:
        result = function(*args, **kwargs)
    except RedsyncError as error:
        result = error
    return result, time.monotonic() - started


def claims(raw, key="redsync:x"):
    """Return each node's claims of a lock: owner -> hold count; each claim has a number besides its owner."""
    return [{claim.rpartition(b":")[0]: count for claim, count in node.hgetall(key).items()} for node in raw]


def values(raw, key="redsync:x"):
    """Return each node's value of a mutex."""
    return [node.get(key) for node in raw]


def calls(node):
    """Return how often a node has executed scripts."""
    return node.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"]


def states(client):
    """Return the state of each node, as the client sees it."""
    return [status.state for status in client.nodes()]


def connect_set(client, count=1):
    """Wait until a client for threads has that many sets of connections to all its nodes, for threads that ask."""
    client.runner.connect()
    pool, deadline, ready = client.runner.life.pool, time.monotonic() + PATIENCE, []
    while len(ready) < count:
        assert time.monotonic() < deadline, "a node is down"
        sets = []
        pool.borrow(sets)
        if sets and None not in sets[0].links:
            ready.append(sets)
        elif sets:
            pool.take_back(sets)
        time.sleep(0.001)
    for sets in ready:
        pool.take_back(sets)


def lose(client, name="x"):
    """Make the hold of that name lost at this instant, as the watchdog would find it; return it."""
    (state,) = (state for state in client.runner.session.holds if state.name == name)
    state.valid_until = state.renew_at = 0.0
    client.runner.session.holds.watch(state)
    return state


def flush(raw, nodes=5):
    for node in raw[:nodes]:
        node.flushall()
