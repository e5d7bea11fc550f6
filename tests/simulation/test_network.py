"""The virtual network: order within a connection, and the effects of partitions, loss and broken connections."""

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
    """One connection, with all that is scheduled performed at once, in order."""

    def __init__(self, seed=1):
        self.timeline = Timeline()
        self.rng = random.Random(seed)
        self.network = Network(self.timeline, self.rng.random, random.Random(f"{seed} wire").random)
        self.machine, self.node = Inbox(), Inbox()
        self.host = Host("a", Clock(self.timeline))
        self.connection = self.network.dial(self.host, self.machine, self.node)
        self.route = self.network.route(self.host, self.node)

    def run_timeline(self, until=100.0):
        while self.timeline.entries and min(self.timeline.entries)[0] <= until:
            entry = min(self.timeline.entries)
            self.timeline.entries.remove(entry)
            self.timeline.now = entry[0]
            entry[3](*entry[4])


@pytest.fixture
def wire():
    return Wire()


def test_held_messages_arrive_late_or_the_connection_breaks():
    ends = set()
    for seed in range(20):
        wire = Wire(seed)
        wire.route.there.blocked = wire.route.back.blocked = True
        wire.connection.there.send(b"1")
        wire.connection.there.send(b"2")
        wire.network.heal(wire.route)
        wire.run_timeline()
        ends.add((tuple(wire.node.messages), tuple(wire.machine.messages)))
    assert ends == {((b"1", b"2"), ()), ((CLOSED,), (CLOSED,))}


def test_held_messages_wait_for_the_next_retransmission_where_the_network_retransmits():
    arrivals = []
    for seed in range(40):
        wire = Wire(seed)
        wire.network.retransmits = wire.route.there.blocked = True
        wire.connection.there.send(b"request")
        wire.timeline.now = 30.0
        wire.network.heal(wire.route)
        wire.run_timeline(until=100.0)
        if wire.connection.open:
            assert wire.node.messages == [b"request"]
            arrivals.append(wire.timeline.now)
    assert 30.0 < min(arrivals) < 40.0
    assert 50.0 < max(arrivals) < 60.1


def test_lost_packet_ends_the_connection_and_what_is_behind_it_never_arrives(wire):
    wire.connection.there.send(b"request")
    wire.route.there.loss = wire.route.back.loss = 1.0
    wire.connection.there.send(b"lost")
    wire.connection.back.send(b"lost reply")
    wire.route.there.loss = 0.0
    wire.connection.there.send(b"behind it")
    wire.run_timeline()
    assert wire.node.messages == [b"request", CLOSED]
    assert wire.machine.messages == [CLOSED]


def test_abandoned_connection_drops_held_messages(wire):
    wire.connection.there.send(b"under way")
    wire.route.there.blocked = True
    wire.connection.there.send(b"held")
    wire.connection.abort()
    wire.network.heal(wire.route)
    wire.run_timeline()
    assert b"held" not in wire.node.messages
    assert wire.node.messages[0] == b"under way"


# Pieces.


@pytest.mark.parametrize("way", ["there", "back"])
def test_torn_message_arrives_in_part_and_the_connection_ends(way):
    lengths = set()
    for seed in range(30):
        wire = Wire(seed)
        getattr(wire.route, way).tears = 1.0
        getattr(wire.connection, way).send(b"0123456789")
        getattr(wire.connection, way).send(b"behind it")
        wire.run_timeline()
        near, far = wire.machine.messages, wire.node.messages
        part, end = near if way == "back" else far
        assert (near if way == "there" else far) == [CLOSED]
        assert end is CLOSED
        assert b"0123456789".startswith(part)
        lengths.add(len(part))
    assert min(lengths) >= 1
    assert max(lengths) <= 9
    assert len(lengths) > 4
