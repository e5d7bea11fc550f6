"""The virtual network: what a partition holds arrives late, or the connection breaks.

The stories in `tests/scenarios` show the effects of lost packets and torn messages.
"""

import random

import pytest

from redsync.testing.simulator.loop import Clock, Host, Timeline
from redsync.testing.simulator.network import CLOSED, Network


class Inbox:
    def __init__(self):
        self.messages = []

    def receive(self, connection, message):
        self.messages.append(message)


class Wire:
    """One connection, which has sent one message; two more are held by a partition that begins then."""

    def __init__(self, seed, *, retransmits=False):
        self.timeline = Timeline()
        self.network = Network(self.timeline, random.Random(seed).random, random.random)
        self.network.retransmits = retransmits
        self.node = Inbox()
        host = Host("a", Clock(self.timeline))
        self.connection = self.network.dial(host, Inbox(), self.node)
        self.route = self.network.route(host, self.node)
        self.connection.there.send(b"0")
        self.route.there.blocked = self.route.back.blocked = True
        self.connection.there.send(b"1")
        self.connection.there.send(b"2")

    def heal(self, at):
        """End the partition; return the received messages, and the instant of the last."""
        self.timeline.now = at
        self.network.heal(self.route)
        while self.timeline.entries:
            entry = min(self.timeline.entries)
            self.timeline.entries.remove(entry)
            self.timeline.now = max(entry[0], self.timeline.now)
            entry[3](*entry[4])
        return self.node.messages, self.timeline.now


@pytest.mark.parametrize(
    ("retransmits", "latest"),
    [pytest.param(False, 31.0, id="at once"), pytest.param(True, 60.1, id="when their sender tries again")],
)
def test_held_messages_arrive_late_or_the_connection_breaks(retransmits, latest):
    ends = [Wire(seed, retransmits=retransmits).heal(at=30.0) for seed in range(40)]
    assert {tuple(messages) for messages, _ in ends} == {(b"0", b"1", b"2"), (CLOSED,)}
    arrivals = [when for messages, when in ends if messages[-1] == b"2"]
    assert min(arrivals) >= 30.0
    assert latest - 10.0 < max(arrivals) < latest


def test_abandoned_connection_drops_held_messages():
    for seed in range(10):
        wire = Wire(seed)
        wire.connection.abort()
        assert not {b"1", b"2"} & set(wire.heal(at=30.0)[0])


def test_connection_that_its_client_closed_is_forgotten_once_the_node_knows():
    wire = Wire(0)
    wire.connection.hang_up()
    assert list(wire.route.connections) == [wire.connection]
    assert wire.heal(at=0.0)[0][-1] is CLOSED
    assert not wire.route.connections
