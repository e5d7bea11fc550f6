"""The virtual network: order within a connection, and the effects of partitions, loss and broken connections."""

import random

import pytest

from redsync.testing.simulator.loop import Host
from redsync.testing.simulator.network import CLOSED, Network
from redsync.testing.simulator.timeline import Clock, Timeline


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

    def settle(self, until=100.0):
        while self.timeline.entries and min(self.timeline.entries)[0] <= until:
            entry = min(self.timeline.entries)
            self.timeline.entries.remove(entry)
            self.timeline.now = entry[0]
            entry[3](*entry[4])


@pytest.fixture
def wire():
    return Wire()


def test_messages_arrive_in_order(wire):
    wire.route.there.delay = 2.0
    for i in range(100):
        wire.connection.there.send(b"%d" % i)
    wire.settle()
    assert wire.node.messages == [b"%d" % i for i in range(100)]


def test_push_may_come_after_a_later_reply_over_another_connection():
    later = 0
    for seed in range(20):
        wire = Wire(seed)
        other = wire.network.dial(wire.host, wire.machine, wire.node)
        wire.route.back.push_delay = 2.0
        wire.connection.back.send(b"push", push=True)
        wire.connection.back.send(b"reply after it")
        other.back.send(b"reply")
        wire.settle(0.1)
        if wire.machine.messages == [b"reply"]:
            later += 1
        wire.settle()
        assert [message for message in wire.machine.messages if message != b"reply"] == [b"push", b"reply after it"]
    assert later > 10


def test_partition_of_one_direction_holds_only_that_one(wire):
    wire.route.there.blocked = True
    wire.connection.there.send(b"request")
    wire.connection.back.send(b"reply")
    wire.settle()
    assert (wire.node.messages, wire.machine.messages) == ([], [b"reply"])


def test_held_messages_arrive_late_or_the_connection_breaks():
    ends = set()
    for seed in range(20):
        wire = Wire(seed)
        wire.route.there.blocked = wire.route.back.blocked = True
        wire.connection.there.send(b"1")
        wire.connection.there.send(b"2")
        wire.network.heal(wire.route)
        wire.settle()
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
        wire.settle(until=100.0)
        if wire.connection.open:
            assert wire.node.messages == [b"request"]
            arrivals.append(wire.timeline.now)
    assert 30.0 < min(arrivals) < 40.0
    assert 50.0 < max(arrivals) < 60.1


def test_lost_request_is_never_executed_and_ends_the_connection(wire):
    wire.route.there.loss = 1.0
    wire.connection.there.send(b"lost")
    wire.route.there.loss = 0.0
    wire.connection.there.send(b"behind it")
    wire.settle()
    assert wire.node.messages == [CLOSED]
    assert wire.machine.messages == [CLOSED]


def test_lost_reply_ends_the_connection_after_the_request_arrived(wire):
    wire.connection.there.send(b"request")
    wire.route.back.loss = 1.0
    wire.connection.back.send(b"reply")
    wire.settle()
    assert wire.node.messages == [b"request", CLOSED]
    assert wire.machine.messages == [CLOSED]


def test_hang_up_lets_sent_messages_arrive(wire):
    wire.connection.there.send(b"request")
    wire.connection.hang_up()
    wire.settle()
    assert wire.node.messages == [b"request", CLOSED]


def test_sender_over_a_broken_connection_learns_the_end_again(wire):
    wire.route.back.blocked = True
    wire.connection.reset()
    wire.settle()
    assert wire.machine.messages == []
    wire.network.heal(wire.route)
    wire.connection.there.send(b"request")
    wire.settle()
    assert wire.machine.messages == [CLOSED]
    assert wire.node.messages == [CLOSED]


def test_silent_end_is_reported_when_the_machine_is_back(wire):
    wire.connection.reset(silently=True)
    wire.connection.there.send(b"request")
    wire.settle()
    assert wire.machine.messages == []
    wire.connection.lighten()
    wire.settle()
    assert wire.machine.messages == [CLOSED]


def test_abandoned_connection_drops_held_messages(wire):
    wire.connection.there.send(b"under way")
    wire.route.there.blocked = True
    wire.connection.there.send(b"held")
    wire.connection.abort()
    wire.network.heal(wire.route)
    wire.settle()
    assert b"held" not in wire.node.messages
    assert wire.node.messages[0] == b"under way"


def test_machine_may_continue_to_send_abandoned_messages(wire):
    wire.network.kept = 1.0
    wire.connection.there.send(b"under way")
    wire.connection.abort()
    wire.settle()
    assert wire.node.messages == [b"under way", CLOSED]


def test_reset_that_a_partition_swallowed_is_noticed_when_the_node_sends(wire):
    wire.route.there.blocked = True
    wire.connection.abort()
    wire.route.there.mend()
    wire.settle()
    assert wire.node.messages == []
    wire.connection.back.send(b"wake-up")
    wire.settle()
    assert wire.machine.messages == [CLOSED]
    assert wire.node.messages == [CLOSED]


# Pieces.


def test_message_arrives_whole_or_in_two_pieces():
    for split in (0.0, 1.0):
        wire = Wire()
        wire.network.split = split
        wire.connection.there.send(b"request")
        wire.connection.there.send(b"x")
        wire.settle()
        assert b"".join(wire.node.messages) == b"requestx"
        assert len(wire.node.messages) == (3 if split else 2), "a single byte has no pieces"


def test_pieces_do_not_affect_other_random_numbers():
    arrivals = []
    for split in (0.0, 1.0):
        wire = Wire()
        wire.network.split = split
        wire.connection.there.send(b"request")
        arrivals.append(wire.rng.random())
    assert arrivals[0] == arrivals[1]


@pytest.mark.parametrize("way", ["there", "back"])
def test_torn_message_arrives_in_part_and_the_connection_ends(way):
    lengths = set()
    for seed in range(30):
        wire = Wire(seed)
        getattr(wire.route, way).tears = 1.0
        getattr(wire.connection, way).send(b"0123456789")
        getattr(wire.connection, way).send(b"behind it")
        wire.settle()
        near, far = wire.machine.messages, wire.node.messages
        part, end = near if way == "back" else far
        assert (near if way == "there" else far) == [CLOSED]
        assert end is CLOSED
        assert b"0123456789".startswith(part)
        lengths.add(len(part))
    assert min(lengths) >= 1
    assert max(lengths) <= 9
    assert len(lengths) > 4
