"""Nodes to break, and the means to look at them from outside redsync."""

import time

import pytest
import redis

from tests.support.leftovers import is_claim

PREFIX = "redsync:"


class Admin:
    """A view of the nodes that bypasses redsync: its own connections, made on demand."""

    def __init__(self, nodes):
        self._nodes = nodes

    def ask(self, i, *command):
        port = self._nodes.ports[i]
        with redis.Redis(port=port, socket_timeout=5, decode_responses=True) as connection:
            return connection.execute_command(*command)

    def ask_all(self, *command):
        return [self.ask(i, *command) for i in range(len(self._nodes))]

    def keys(self, indices=None):
        """Return all keys of these nodes except records, each with its node's index."""
        indices = range(len(self._nodes)) if indices is None else indices
        return [(i, key) for i in indices for key in self.ask(i, "KEYS", "*") if is_claim(key)]

    def calls(self, i, command="evalsha"):
        """Return how often the node has executed that command."""
        return self.ask(i, "INFO", "commandstats").get(f"cmdstat_{command}", {"calls": 0})["calls"]

    def time_left(self, i, name):
        """Return how many milliseconds the node still keeps the lock of that name, -2 if it does not."""
        return self.ask(i, "PTTL", PREFIX + name)


@pytest.fixture
def admin(nodes):
    return Admin(nodes)


@pytest.fixture
def await_renewal(eventually):
    """Return a function that waits until a hold is believed longer than before the call; never if it is lost."""

    def await_renewal(hold):
        before = time.monotonic() + hold.remaining()
        eventually(lambda: time.monotonic() + hold.remaining() > before + 0.05)

    return await_renewal
